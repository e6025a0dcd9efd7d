package bascule.bench;

import java.util.List;
import java.util.function.Consumer;

import io.microraft.statemachine.StateMachine;

/** Counts what is committed, and keeps nothing else. */
final class CountingMachine implements StateMachine {
    private long count;

    @Override
    public Object runOperation(long commitIndex, Object operation) {
        return operation instanceof byte[] ? ++count : count;
    }

    @Override
    public void takeSnapshot(long commitIndex, Consumer<Object> chunks) {
        chunks.accept(count);
    }

    @Override
    public void installSnapshot(long commitIndex, List<Object> chunks) {
        count = (Long) chunks.get(0);
    }

    @Override
    public Object getNewTermOperation() {
        return NewTerm.INSTANCE;
    }

    /** A new leader's first entry. */
    enum NewTerm {
        INSTANCE
    }
}
