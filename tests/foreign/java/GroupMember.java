import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group: prints what it owns and what it reads, as group_member.py does.
 *
 * <p>Arguments: PROTOCOL ADDRESS GROUP TOPIC [INSTANCE]. SIGTERM: commit, leave and end.
 */
public final class GroupMember {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("group.protocol", arguments[0]);
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("group.id", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", 500);
        settings.put("metadata.max.age.ms", 1000);
        if (arguments.length > 4) {
            settings.put("group.instance.id", arguments[4]);
        }
        if (arguments[0].equals("classic")) {
            settings.put("session.timeout.ms", Integer.parseInt(System.getenv("SESSION_MS")));
            settings.put("heartbeat.interval.ms", 500);
        }
        var stopping = new AtomicBoolean();
        var main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            try {
                main.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            var owned = new TreeSet<Integer>();
            var listener = new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    partitions.forEach(each -> owned.remove(each.partition()));
                    System.out.println("{\"owned\": " + owned + "}");
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    partitions.forEach(each -> owned.add(each.partition()));
                    System.out.println("{\"owned\": " + owned + "}");
                }
            };
            String topic = arguments[3];
            if (topic.startsWith("^") && arguments[0].equals("consumer")) {
                consumer.subscribe(new SubscriptionPattern(topic), listener);
            } else if (topic.startsWith("^")) {
                consumer.subscribe(Pattern.compile(topic), listener);
            } else {
                consumer.subscribe(List.of(topic), listener);
            }
            while (!stopping.get()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println("{\"at\": [" + record.partition() + ", " + record.offset() + "]}");
                }
            }
        }
        System.out.println("{\"ended\": true}");
    }
}
