package bascule.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;

import io.microraft.MembershipChangeMode;
import io.microraft.RaftEndpoint;
import io.microraft.model.RaftModelFactory;
import io.microraft.model.groupop.UpdateRaftGroupMembersOp;
import io.microraft.model.log.BaseLogEntry;
import io.microraft.model.log.LogEntry;
import io.microraft.model.log.RaftGroupMembersView;
import io.microraft.model.log.SnapshotChunk;
import io.microraft.model.message.AppendEntriesFailureResponse;
import io.microraft.model.message.AppendEntriesRequest;
import io.microraft.model.message.AppendEntriesSuccessResponse;
import io.microraft.model.message.InstallSnapshotRequest;
import io.microraft.model.message.InstallSnapshotResponse;
import io.microraft.model.message.PreVoteRequest;
import io.microraft.model.message.PreVoteResponse;
import io.microraft.model.message.RaftMessage;
import io.microraft.model.message.TriggerLeaderElectionRequest;
import io.microraft.model.message.VoteRequest;
import io.microraft.model.message.VoteResponse;

/** MicroRaft's model objects as bytes: one byte for the kind, then the fields in order. */
final class Codec {
    static final String GROUP = "bench";

    private static final int PAYLOAD = 0;
    private static final int NEW_TERM = 1;
    private static final int MEMBERS = 2;
    private static final int COUNT = 3;

    private final RaftModelFactory factory;

    Codec(RaftModelFactory factory) {
        this.factory = factory;
    }

    void write(Out out, RaftMessage message) {
        if (message instanceof AppendEntriesRequest m) {
            head(out, 1, m);
            out.int32(m.getPreviousLogTerm());
            out.int64(m.getPreviousLogIndex());
            out.int64(m.getCommitIndex());
            out.int64(m.getQuerySequenceNumber());
            out.int64(m.getFlowControlSequenceNumber());
            List<LogEntry> entries = m.getLogEntries();
            out.int32(entries.size());
            for (LogEntry entry : entries) {
                entry(out, entry);
            }
        } else if (message instanceof AppendEntriesSuccessResponse m) {
            head(out, 2, m);
            out.int64(m.getLastLogIndex());
            out.int64(m.getQuerySequenceNumber());
            out.int64(m.getFlowControlSequenceNumber());
        } else if (message instanceof AppendEntriesFailureResponse m) {
            head(out, 3, m);
            out.int64(m.getExpectedNextIndex());
            out.int64(m.getQuerySequenceNumber());
            out.int64(m.getFlowControlSequenceNumber());
        } else if (message instanceof InstallSnapshotRequest m) {
            head(out, 4, m);
            writeInstall(out, m);
        } else if (message instanceof InstallSnapshotResponse m) {
            head(out, 5, m);
            out.int64(m.getSnapshotIndex());
            out.int32(m.getRequestedSnapshotChunkIndex());
            out.int64(m.getQuerySequenceNumber());
            out.int64(m.getFlowControlSequenceNumber());
        } else {
            writeElection(out, message);
        }
    }

    private static void writeElection(Out out, RaftMessage message) {
        if (message instanceof PreVoteRequest m) {
            head(out, 6, m);
            out.int32(m.getLastLogTerm());
            out.int64(m.getLastLogIndex());
        } else if (message instanceof PreVoteResponse m) {
            head(out, 7, m);
            out.bool(m.isGranted());
        } else if (message instanceof VoteRequest m) {
            head(out, 8, m);
            out.int32(m.getLastLogTerm());
            out.int64(m.getLastLogIndex());
            out.bool(m.isSticky());
        } else if (message instanceof VoteResponse m) {
            head(out, 9, m);
            out.bool(m.isGranted());
        } else if (message instanceof TriggerLeaderElectionRequest m) {
            head(out, 10, m);
            out.int32(m.getLastLogTerm());
            out.int64(m.getLastLogIndex());
        } else {
            throw new IllegalArgumentException("no such message: " + message);
        }
    }

    RaftMessage read(ByteBuffer in) {
        int kind = in.get();
        RaftEndpoint sender = new Peer(in.getInt());
        int term = in.getInt();
        switch (kind) {
            case 1:
                return readAppend(in, sender, term);
            case 2:
                return factory.createAppendEntriesSuccessResponseBuilder().setGroupId(GROUP)
                        .setSender(sender).setTerm(term).setLastLogIndex(in.getLong())
                        .setQuerySequenceNumber(in.getLong())
                        .setFlowControlSequenceNumber(in.getLong()).build();
            case 3:
                return factory.createAppendEntriesFailureResponseBuilder().setGroupId(GROUP)
                        .setSender(sender).setTerm(term).setExpectedNextIndex(in.getLong())
                        .setQuerySequenceNumber(in.getLong())
                        .setFlowControlSequenceNumber(in.getLong()).build();
            case 4:
                return readInstall(in, sender, term);
            case 5:
                return factory.createInstallSnapshotResponseBuilder().setGroupId(GROUP)
                        .setSender(sender).setTerm(term).setSnapshotIndex(in.getLong())
                        .setRequestedSnapshotChunkIndex(in.getInt())
                        .setQuerySequenceNumber(in.getLong())
                        .setFlowControlSequenceNumber(in.getLong()).build();
            case 6:
                return factory.createPreVoteRequestBuilder().setGroupId(GROUP).setSender(sender)
                        .setTerm(term).setLastLogTerm(in.getInt()).setLastLogIndex(in.getLong())
                        .build();
            case 7:
                return factory.createPreVoteResponseBuilder().setGroupId(GROUP).setSender(sender)
                        .setTerm(term).setGranted(in.get() != 0).build();
            case 8:
                return factory.createVoteRequestBuilder().setGroupId(GROUP).setSender(sender)
                        .setTerm(term).setLastLogTerm(in.getInt()).setLastLogIndex(in.getLong())
                        .setSticky(in.get() != 0).build();
            case 9:
                return factory.createVoteResponseBuilder().setGroupId(GROUP).setSender(sender)
                        .setTerm(term).setGranted(in.get() != 0).build();
            case 10:
                return factory.createTriggerLeaderElectionRequestBuilder().setGroupId(GROUP)
                        .setSender(sender).setTerm(term).setLastLogTerm(in.getInt())
                        .setLastLogIndex(in.getLong()).build();
            default:
                throw new IllegalArgumentException("no such kind of message: " + kind);
        }
    }

    private static void head(Out out, int kind, RaftMessage message) {
        out.byte8(kind);
        peer(out, message.getSender());
        out.int32(message.getTerm());
    }

    private RaftMessage readAppend(ByteBuffer in, RaftEndpoint sender, int term) {
        var builder = factory.createAppendEntriesRequestBuilder().setGroupId(GROUP)
                .setSender(sender).setTerm(term).setPreviousLogTerm(in.getInt())
                .setPreviousLogIndex(in.getLong()).setCommitIndex(in.getLong())
                .setQuerySequenceNumber(in.getLong()).setFlowControlSequenceNumber(in.getLong());
        int count = in.getInt();
        List<LogEntry> entries = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            entries.add(readEntry(in));
        }
        return builder.setLogEntries(entries).build();
    }

    private void writeInstall(Out out, InstallSnapshotRequest m) {
        out.bool(m.isSenderLeader());
        out.int32(m.getSnapshotTerm());
        out.int64(m.getSnapshotIndex());
        out.int32(m.getTotalSnapshotChunkCount());
        peers(out, m.getSnapshottedMembers());
        view(out, m.getGroupMembersView());
        out.int64(m.getQuerySequenceNumber());
        out.int64(m.getFlowControlSequenceNumber());
        out.bool(m.getSnapshotChunk() != null);
        if (m.getSnapshotChunk() != null) {
            chunk(out, m.getSnapshotChunk());
        }
    }

    private RaftMessage readInstall(ByteBuffer in, RaftEndpoint sender, int term) {
        return factory.createInstallSnapshotRequestBuilder().setGroupId(GROUP).setSender(sender)
                .setTerm(term).setSenderLeader(in.get() != 0).setSnapshotTerm(in.getInt())
                .setSnapshotIndex(in.getLong()).setTotalSnapshotChunkCount(in.getInt())
                .setSnapshottedMembers(readPeers(in)).setGroupMembersView(readView(in))
                .setQuerySequenceNumber(in.getLong()).setFlowControlSequenceNumber(in.getLong())
                .setSnapshotChunk(in.get() != 0 ? readChunk(in) : null).build();
    }

    static void peer(Out out, RaftEndpoint peer) {
        out.int32(((Peer) peer).id());
    }

    static RaftEndpoint readPeer(ByteBuffer in) {
        return new Peer(in.getInt());
    }

    private static void peers(Out out, Collection<RaftEndpoint> peers) {
        out.int32(peers.size());
        for (RaftEndpoint peer : peers) {
            peer(out, peer);
        }
    }

    private static Collection<RaftEndpoint> readPeers(ByteBuffer in) {
        int count = in.getInt();
        Collection<RaftEndpoint> peers = new LinkedHashSet<>();
        for (int i = 0; i < count; i++) {
            peers.add(readPeer(in));
        }
        return peers;
    }

    void view(Out out, RaftGroupMembersView view) {
        out.int64(view.getLogIndex());
        peers(out, view.getMembers());
        peers(out, view.getVotingMembers());
    }

    RaftGroupMembersView readView(ByteBuffer in) {
        return factory.createRaftGroupMembersViewBuilder().setLogIndex(in.getLong())
                .setMembers(readPeers(in)).setVotingMembers(readPeers(in)).build();
    }

    void chunk(Out out, SnapshotChunk chunk) {
        entryHead(out, chunk);
        out.int32(chunk.getSnapshotChunkIndex());
        out.int32(chunk.getSnapshotChunkCount());
        view(out, chunk.getGroupMembersView());
    }

    SnapshotChunk readChunk(ByteBuffer in) {
        return factory.createSnapshotChunkBuilder().setIndex(in.getLong()).setTerm(in.getInt())
                .setOperation(readOperation(in)).setSnapshotChunkIndex(in.getInt())
                .setSnapshotChunkCount(in.getInt()).setGroupMembersView(readView(in)).build();
    }

    void entry(Out out, LogEntry entry) {
        entryHead(out, entry);
    }

    LogEntry readEntry(ByteBuffer in) {
        return factory.createLogEntryBuilder().setIndex(in.getLong()).setTerm(in.getInt())
                .setOperation(readOperation(in)).build();
    }

    private static void entryHead(Out out, BaseLogEntry entry) {
        out.int64(entry.getIndex());
        out.int32(entry.getTerm());
        operation(out, entry.getOperation());
    }

    private static void operation(Out out, Object operation) {
        if (operation instanceof byte[] payload) {
            out.byte8(PAYLOAD);
            out.blob(payload);
        } else if (operation == CountingMachine.NewTerm.INSTANCE) {
            out.byte8(NEW_TERM);
        } else if (operation instanceof UpdateRaftGroupMembersOp op) {
            out.byte8(MEMBERS);
            peers(out, op.getMembers());
            peers(out, op.getVotingMembers());
            peer(out, op.getEndpoint());
            out.int32(op.getMode().ordinal());
        } else if (operation instanceof Long count) {
            out.byte8(COUNT);
            out.int64(count);
        } else {
            throw new IllegalArgumentException("no such operation: " + operation);
        }
    }

    private Object readOperation(ByteBuffer in) {
        int kind = in.get();
        switch (kind) {
            case PAYLOAD:
                byte[] payload = new byte[in.getInt()];
                in.get(payload);
                return payload;
            case NEW_TERM:
                return CountingMachine.NewTerm.INSTANCE;
            case MEMBERS:
                return factory.createUpdateRaftGroupMembersOpBuilder().setMembers(readPeers(in))
                        .setVotingMembers(readPeers(in)).setEndpoint(readPeer(in))
                        .setMode(MembershipChangeMode.values()[in.getInt()]).build();
            case COUNT:
                return in.getLong();
            default:
                throw new IllegalArgumentException("no such kind of operation: " + kind);
        }
    }
}
