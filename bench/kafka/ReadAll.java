import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads partition 0 of a topic from its start with the Java client's default settings.
 *
 * <p>Each line of standard input is "ADDRESS TOPIC COUNT VALUE_BYTES"; the answer is a line with the seconds from
 * the assignment to the last record. One process serves every line, so that all servers meet the same compiled code.
 */
public final class ReadAll {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(read(words[0], words[1], Long.parseLong(words[2]), Long.parseLong(words[3])));
        }
    }

    private static double read(String address, String topic, long count, long valueBytes) {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "enable.auto.commit", false);
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            var partition = new TopicPartition(topic, 0);
            long began = System.nanoTime();
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            long next = 0;
            long received = 0;
            while (next < count) {
                var records = consumer.poll(Duration.ofSeconds(10));
                if (records.isEmpty()) {
                    throw new IllegalStateException("no record in 10 s at offset " + next);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (record.offset() != next) {
                        throw new IllegalStateException("offset " + record.offset() + ", expected " + next);
                    }
                    next++;
                    received += record.value().length;
                }
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            if (next == count && received != count * valueBytes) {
                throw new IllegalStateException(received + " bytes, expected " + count * valueBytes);
            }
            return seconds;
        }
    }
}
