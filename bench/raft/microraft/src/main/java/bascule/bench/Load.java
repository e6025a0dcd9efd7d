package bascule.bench;

import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;

import io.microraft.Ordered;
import io.microraft.RaftNode;

/** Proposals, so many in flight, each answered one followed by the next, until the time is over. */
final class Load {
    private final RaftNode node;
    private final int inFlight;
    private final byte[] payload;
    private final CountDownLatch done = new CountDownLatch(1);

    private long deadline;
    private long[] latencies = new long[1 << 16];
    private int committed;
    private int ended;
    private long last;
    private Throwable failure;

    Load(RaftNode node, int inFlight, int payloadBytes) {
        this.node = node;
        this.inFlight = inFlight;
        payload = new byte[payloadBytes];
        Arrays.fill(payload, (byte) 'x');
    }

    String run(double seconds) throws InterruptedException {
        long began = System.nanoTime();
        deadline = began + (long) (seconds * 1e9);
        for (int i = 0; i < inFlight; i++) {
            propose();
        }
        done.await();
        if (failure != null) {
            throw new IllegalStateException("a proposal failed", failure);
        }
        long[] sorted = Arrays.copyOf(latencies, committed);
        Arrays.sort(sorted);
        return String.format(Locale.ROOT,
                "{\"committed\": %d, \"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}",
                committed, (last - began) / 1e9, sorted[committed / 2] / 1e6,
                sorted[committed * 99 / 100] / 1e6);
    }

    private void propose() {
        long began = System.nanoTime();
        node.<Object>replicate(payload)
                .whenComplete((result, problem) -> answered(began, result, problem));
    }

    /** Called by the Raft thread. */
    private synchronized void answered(long began, Ordered<Object> result, Throwable problem) {
        long now = System.nanoTime();
        if (problem != null) {
            failure = problem;
        } else {
            if (committed == latencies.length) {
                latencies = Arrays.copyOf(latencies, 2 * committed);
            }
            latencies[committed++] = now - began;
        }
        last = now;
        if (problem == null && now < deadline) {
            propose();
        } else if (++ended == inFlight) {
            done.countDown();
        }
    }
}
