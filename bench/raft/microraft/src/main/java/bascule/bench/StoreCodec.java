package bascule.bench;

import java.nio.ByteBuffer;
import java.util.function.BiConsumer;
import java.util.function.Function;

import io.microraft.RaftEndpoint;
import io.microraft.model.RaftModelFactory;
import io.microraft.model.log.LogEntry;
import io.microraft.model.log.RaftGroupMembersView;
import io.microraft.model.log.SnapshotChunk;
import io.microraft.model.persistence.RaftEndpointPersistentState;
import io.microraft.model.persistence.RaftTermPersistentState;
import io.microraft.persistence.RaftStoreSerializer;

/** What the store keeps, by the codec of the wire. */
final class StoreCodec implements RaftStoreSerializer {
    private final Serializer<RaftGroupMembersView> views;
    private final Serializer<RaftEndpoint> peers;
    private final Serializer<LogEntry> entries;
    private final Serializer<SnapshotChunk> chunks;
    private final Serializer<RaftEndpointPersistentState> endpoints;
    private final Serializer<RaftTermPersistentState> terms;

    StoreCodec(Codec codec, RaftModelFactory factory) {
        views = of(codec::view, codec::readView);
        peers = of(Codec::peer, Codec::readPeer);
        entries = of(codec::entry, codec::readEntry);
        chunks = of(codec::chunk, codec::readChunk);
        endpoints = of((out, state) -> {
            Codec.peer(out, state.getLocalEndpoint());
            out.bool(state.isVoting());
        }, in -> factory.createRaftEndpointPersistentStateBuilder()
                .setLocalEndpoint(Codec.readPeer(in)).setVoting(in.get() != 0).build());
        terms = of((out, state) -> {
            out.int32(state.getTerm());
            out.bool(state.getVotedFor() != null);
            if (state.getVotedFor() != null) {
                Codec.peer(out, state.getVotedFor());
            }
        }, in -> factory.createRaftTermPersistentStateBuilder().setTerm(in.getInt())
                .setVotedFor(in.get() != 0 ? Codec.readPeer(in) : null).build());
    }

    private static <T> Serializer<T> of(BiConsumer<Out, T> write, Function<ByteBuffer, T> read) {
        return new Serializer<>() {
            @Override
            public byte[] serialize(T element) {
                Out out = new Out(160);
                write.accept(out, element);
                return out.copy();
            }

            @Override
            public T deserialize(byte[] bytes) {
                return read.apply(ByteBuffer.wrap(bytes));
            }
        };
    }

    @Override
    public Serializer<RaftGroupMembersView> raftGroupMembersViewSerializer() {
        return views;
    }

    @Override
    public Serializer<RaftEndpoint> raftEndpointSerializer() {
        return peers;
    }

    @Override
    public Serializer<LogEntry> logEntrySerializer() {
        return entries;
    }

    @Override
    public Serializer<SnapshotChunk> snapshotChunkSerializer() {
        return chunks;
    }

    @Override
    public Serializer<RaftEndpointPersistentState> raftEndpointPersistentStateSerializer() {
        return endpoints;
    }

    @Override
    public Serializer<RaftTermPersistentState> raftTermPersistentState() {
        return terms;
    }
}
