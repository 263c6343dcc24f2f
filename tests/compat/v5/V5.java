// Apache Pulsar's own V5 client, driven by lines on stdin: one command in, one line out ("ok ..." or "error TEXT").
// Run by test_v5_client.py; by hand: java -cp 'JARS/*' V5.java pulsar://HOST:PORT
//
// Messages are "KEY#NUMBER", the numbers of a key rising by one with each that is sent.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.CheckpointConsumerBuilder;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

public class V5 {
    static final Map<String, Producer<String>> producers = new HashMap<>();
    static final Map<String, AutoCloseable> consumers = new HashMap<>();
    static final Map<String, Integer> numbers = new ConcurrentHashMap<>();
    static final Map<String, CompletableFuture<Integer>> floods = new HashMap<>();
    static PulsarClient client;

    public static void main(String[] args) throws Exception {
        client = PulsarClient.builder().serviceUrl(args[0]).build();
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (Throwable e) {
                e.printStackTrace();
                answer = "error " + e;
            }
            System.out.println(answer.replace('\n', ' ').trim());
        }
        client.close();
        System.exit(0);
    }

    static String run(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "producer":
                producers.put(name, client.newProducer(Schema.string()).topic(words[2]).create());
                return "";
            case "queue":
                consumers.put(name, client.newQueueConsumer(Schema.string()).topic(words[2]).subscriptionName(words[3])
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe());
                return "";
            case "stream":
                consumers.put(name, client.newStreamConsumer(Schema.string()).topic(words[2]).subscriptionName(words[3])
                        .consumerName(name).subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .acknowledgmentGroupTime(Duration.ofMillis(10)).subscribe());
                return "";
            case "namespace":
                consumers.put(name, client.newQueueConsumer(Schema.string()).namespace(words[2]).subscriptionName(words[3])
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe());
                return "";
            case "checkpoint":
                CheckpointConsumerBuilder<String> builder =
                        client.newCheckpointConsumer(Schema.string()).topic(words[2]).startPosition(Checkpoint.earliest());
                if (words.length > 3) {
                    builder = builder.consumerGroup(words[3]).consumerName(name);
                }
                consumers.put(name, builder.create());
                return "";
            case "send":
                return String.valueOf(send(producers.get(name), Integer.parseInt(words[2]), Integer.parseInt(words[3]), 0));
            case "flood":
                int count = Integer.parseInt(words[2]), keys = Integer.parseInt(words[3]), pause = Integer.parseInt(words[4]);
                floods.put(name, CompletableFuture.supplyAsync(() -> {
                    try {
                        return send(producers.get(name), count, keys, pause);
                    } catch (Exception e) {
                        throw new RuntimeException(e);
                    }
                }));
                return "";
            case "flooded":
                return String.valueOf(floods.remove(name).get());
            case "receive":
                return receive(consumers.get(name), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "close":
                AutoCloseable closed = consumers.containsKey(name) ? consumers.remove(name) : producers.remove(name);
                closed.close();
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    static int send(Producer<String> producer, int count, int keys, int pauseMs) throws Exception {
        for (int i = 0; i < count; i++) {
            String key = "k" + i % keys;
            int number = numbers.merge(producer.topic() + key, 1, Integer::sum);
            producer.newMessage().key(key).value(key + "#" + number).send();
            if (pauseMs > 0) {
                Thread.sleep(pauseMs);
            }
        }
        return count;
    }

    static String receive(AutoCloseable consumer, int count, int timeoutMs) throws Exception {
        List<String> found = new ArrayList<>();
        long end = System.currentTimeMillis() + timeoutMs;
        while (found.size() < count) {
            long left = end - System.currentTimeMillis();
            if (left <= 0) {
                break;
            }
            Message<String> message;
            if (consumer instanceof QueueConsumer<?> queue) {
                message = (Message<String>) queue.receive(Duration.ofMillis(left));
                if (message != null) {
                    queue.acknowledge(message.id());
                }
            } else if (consumer instanceof StreamConsumer<?> stream) {
                message = (Message<String>) stream.receive(Duration.ofMillis(left));
                if (message != null) {
                    stream.acknowledgeCumulative(message.id());
                }
            } else {
                message = (Message<String>) ((CheckpointConsumer<?>) consumer).receive(Duration.ofMillis(left));
            }
            if (message != null) {
                found.add(message.value());
            }
        }
        return String.join(" ", found);
    }
}
