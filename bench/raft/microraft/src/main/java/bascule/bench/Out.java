package bascule.bench;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/** Bytes that grow: big-endian integers and byte arrays behind their lengths. */
final class Out {
    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

    byte[] bytes;
    int size;

    Out(int capacity) {
        bytes = new byte[capacity];
    }

    private void need(int more) {
        if (size + more > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, size + more));
        }
    }

    void byte8(int value) {
        need(1);
        bytes[size++] = (byte) value;
    }

    void bool(boolean value) {
        byte8(value ? 1 : 0);
    }

    void int32(int value) {
        need(4);
        INT.set(bytes, size, value);
        size += 4;
    }

    void int64(long value) {
        need(8);
        LONG.set(bytes, size, value);
        size += 8;
    }

    void blob(byte[] value) {
        int32(value.length);
        need(value.length);
        System.arraycopy(value, 0, bytes, size, value.length);
        size += value.length;
    }

    /** Writes the bytes between {@code start} and here as the length that stands in front of them. */
    void lengthAt(int start) {
        INT.set(bytes, start, size - start - 4);
    }

    byte[] copy() {
        return Arrays.copyOf(bytes, size);
    }
}
