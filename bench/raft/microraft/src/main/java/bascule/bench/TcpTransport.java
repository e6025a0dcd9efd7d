package bascule.bench;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;

import io.microraft.RaftEndpoint;
import io.microraft.model.message.RaftMessage;
import io.microraft.transport.Transport;

/**
 * One connection to each peer to send, one from each to receive; a frame is a length and a message.
 * A thread of its own turns messages into bytes, so that the Raft thread does not.
 */
final class TcpTransport implements Transport {
    private static final int BUFFER_BYTES = 1 << 18;

    private final Map<RaftEndpoint, Link> links = new HashMap<>();
    private final ServerSocket server;
    private final Codec codec;

    TcpTransport(int self, int[] ports, Codec codec) throws IOException {
        this.codec = codec;
        server = new ServerSocket(ports[self], 16, InetAddress.getLoopbackAddress());
        for (int id = 0; id < ports.length; id++) {
            if (id != self) {
                links.put(new Peer(id), new Link(ports[id]));
            }
        }
    }

    /** Begins to receive and to send. */
    void start(Consumer<RaftMessage> handle) {
        daemon("accept", () -> {
            while (true) {
                Socket socket = server.accept();
                daemon("receive", () -> receive(socket, handle));
            }
        });
        for (Link link : links.values()) {
            daemon("send", link::run);
        }
    }

    @Override
    public void send(RaftEndpoint target, RaftMessage message) {
        links.get(target).queue.add(message);
    }

    @Override
    public boolean isReachable(RaftEndpoint endpoint) {
        return links.get(endpoint).connected;
    }

    private void receive(Socket socket, Consumer<RaftMessage> handle) throws IOException {
        socket.setTcpNoDelay(true);
        try (socket) {
            var in = new DataInputStream(
                    new BufferedInputStream(socket.getInputStream(), BUFFER_BYTES));
            while (true) {
                byte[] body = new byte[in.readInt()];
                in.readFully(body);
                handle.accept(codec.read(ByteBuffer.wrap(body)));
            }
        } catch (EOFException | SocketException e) {
            return; // The peer went away, and connects again when it is back.
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void daemon(String name, Work work) {
        var thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception e) {
                e.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** What is sent to one peer. */
    private final class Link {
        final LinkedBlockingQueue<RaftMessage> queue = new LinkedBlockingQueue<>();
        final int port;
        volatile boolean connected;

        Link(int port) {
            this.port = port;
        }

        void run() throws InterruptedException {
            while (true) {
                try (Socket socket = new Socket()) {
                    socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
                    socket.setTcpNoDelay(true);
                    connected = true;
                    send(socket.getOutputStream());
                } catch (IOException e) {
                    connected = false;
                    queue.clear();
                    Thread.sleep(50);
                }
            }
        }

        /** Sends what is queued; what is there at one moment leaves in one write. */
        private void send(OutputStream stream) throws IOException, InterruptedException {
            Out out = new Out(BUFFER_BYTES);
            while (true) {
                RaftMessage message = queue.take();
                while (message != null) {
                    int start = out.size;
                    out.int32(0);
                    codec.write(out, message);
                    out.lengthAt(start);
                    message = out.size < BUFFER_BYTES ? queue.poll() : null;
                }
                stream.write(out.bytes, 0, out.size);
                out.size = 0;
            }
        }
    }
}
