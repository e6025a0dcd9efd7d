package bascule.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import io.microraft.RaftEndpoint;
import io.microraft.RaftNode;
import io.microraft.model.impl.DefaultRaftModelFactory;
import io.microraft.store.sqlite.RaftSqliteStore;

/** A member of a group of MicroRaft, moved by lines on standard input: ID PORT,PORT,... DIRECTORY. */
public final class Member {
    private Member() {
    }

    public static void main(String[] args) throws Exception {
        int self = Integer.parseInt(args[0]);
        int[] ports = Arrays.stream(args[1].split(",")).mapToInt(Integer::parseInt).toArray();
        List<RaftEndpoint> peers = new ArrayList<>();
        for (int id = 0; id < ports.length; id++) {
            peers.add(new Peer(id));
        }
        var factory = new DefaultRaftModelFactory();
        var codec = new Codec(factory);
        var transport = new TcpTransport(self, ports, codec);
        var store = RaftSqliteStore.create(new File(args[2], "microraft.db"), factory,
                new StoreCodec(codec, factory));
        RaftNode node = RaftNode.newBuilder().setGroupId(Codec.GROUP)
                .setLocalEndpoint(peers.get(self)).setInitialGroupMembers(peers)
                .setTransport(transport).setStore(store).setModelFactory(factory)
                .setStateMachine(new CountingMachine()).build();
        transport.start(node::handle);
        node.start().join();
        obey(node, peers.get(self));
        node.terminate().join();
        System.exit(0);
    }

    private static void obey(RaftNode node, RaftEndpoint self) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null && !line.equals("exit")) {
            String[] words = line.split(" ");
            String answer = switch (words[0]) {
                case "leader" -> "{\"leader\": " + self.equals(node.getTerm().getLeaderEndpoint())
                        + "}";
                case "statistics" -> "{}";
                case "load" -> new Load(node, Integer.parseInt(words[1]),
                        Integer.parseInt(words[3])).run(Double.parseDouble(words[2]));
                default -> throw new IllegalArgumentException(line);
            };
            System.out.println(answer);
        }
    }
}
