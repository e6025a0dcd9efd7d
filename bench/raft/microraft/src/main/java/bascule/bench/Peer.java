package bascule.bench;

import io.microraft.RaftEndpoint;

/** A member of the group; its id is the position of its port. */
record Peer(int id) implements RaftEndpoint {
    @Override
    public Object getId() {
        return id;
    }
}
