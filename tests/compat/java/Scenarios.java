// What Apache Pulsar's own Java client and its admin client see of a server. `make compat-all ARGS=java` runs it; by hand:
//     java -cp 'JARS/*' Scenarios.java pulsar://HOST:PORT http://HOST:PORT [NAME ...]
// One line for each scenario: PASS name, or FAIL name: why. Each works in a namespace of its own; the server allows everybody everything.

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.util.Murmur3_32Hash;

public class Scenarios {
    static final int ENDS_S = 30; // a future that has not ended by then hangs
    static final int SCENARIO_S = 90;

    final PulsarClient client;
    final PulsarAdmin admin;
    final String url;
    final String namespace;

    Scenarios(String url, String http, String namespace) throws Exception {
        this.url = url;
        this.namespace = namespace;
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(20, TimeUnit.SECONDS).build();
        admin = PulsarAdmin.builder().serviceHttpUrl(http).build();
        admin.namespaces().createNamespace(namespace);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Method> scenarios = new TreeMap<>();
        for (Method method : Scenarios.class.getDeclaredMethods()) {
            if (method.getName().startsWith("test")) {
                scenarios.put(method.getName(), method);
            }
        }
        if (args[0].equals("list")) {
            scenarios.keySet().forEach(System.out::println);
            System.exit(0);
        }
        List<String> chosen = Arrays.asList(args).subList(2, args.length);
        ExecutorService threads = Executors.newCachedThreadPool();
        for (Map.Entry<String, Method> scenario : scenarios.entrySet()) {
            if (!chosen.isEmpty() && !chosen.contains(scenario.getKey())) {
                continue;
            }
            String namespace = "public/java-" + Long.toHexString(System.nanoTime());
            Future<?> run = threads.submit((Callable<Object>) () -> {
                Scenarios each = new Scenarios(args[0], args[1], namespace);
                try {
                    return scenario.getValue().invoke(each);
                } finally {
                    each.client.closeAsync();
                }
            });
            String outcome = "PASS " + scenario.getKey();
            try {
                run.get(SCENARIO_S, TimeUnit.SECONDS);
            } catch (TimeoutException e) {
                run.cancel(true);
                outcome = "FAIL " + scenario.getKey() + ": not ended after " + SCENARIO_S + " s";
            } catch (ExecutionException e) {
                Throwable cause = e.getCause();
                cause = cause instanceof java.lang.reflect.InvocationTargetException ? cause.getCause() : cause;
                cause.printStackTrace();
                outcome = "FAIL " + scenario.getKey() + ": " + cause.toString().replace('\n', ' ');
            }
            System.out.println(outcome);
        }
        System.exit(0);
    }

    // ---- Helpers

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(Object found, Object expected) {
        check(expected.equals(found), "expected " + expected + ", found " + found);
    }

    interface Attempt {
        void run() throws Exception;
    }

    static <E extends Throwable> E fails(Class<E> kind, Attempt attempt) throws Exception {
        try {
            attempt.run();
        } catch (Throwable e) {
            if (kind.isInstance(e)) {
                return kind.cast(e);
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", found " + e, e);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", but it succeeded");
    }

    /** Each ends, with a receipt or with an error; the number of receipts. */
    static int ended(List<CompletableFuture<MessageId>> sent) throws Exception {
        int receipts = 0;
        long untilMs = System.currentTimeMillis() + ENDS_S * 1000L;
        for (CompletableFuture<MessageId> each : sent) {
            try {
                each.get(Math.max(1, untilMs - System.currentTimeMillis()), TimeUnit.MILLISECONDS);
                receipts++;
            } catch (ExecutionException e) {
                // told
            } catch (TimeoutException e) {
                throw new AssertionError("a message of " + sent.size() + " has neither a receipt nor an error");
            }
        }
        return receipts;
    }

    /** Messages all the time from before to after `event`; all of them end. */
    int sendingAcross(Producer<byte[]> producer, Attempt event) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < 400; number++) {
            if (number == 200) {
                sent.get(0).get(ENDS_S, TimeUnit.SECONDS);
                event.run();
            }
            sent.add(producer.sendAsync(("m" + number).getBytes()));
        }
        producer.flushAsync();
        return ended(sent);
    }

    String topic(String name) {
        return "persistent://" + namespace + "/" + name;
    }

    Producer<byte[]> producer(String topic) throws Exception {
        return client.newProducer().topic(topic).enableBatching(false).blockIfQueueFull(true)
                .sendTimeout(20, TimeUnit.SECONDS).create();
    }

    Consumer<byte[]> consumer(String topic, String subscription) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    // ---- A topic's messages stay in it

    public void testRetryTopicsOfTwoTopicsAreTwo() throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            consumers.add(client.newConsumer().topic(topic(name)).subscriptionName("s").enableRetry(true)
                    .subscriptionType(SubscriptionType.Shared)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        }
        for (String name : List.of("a", "b")) {
            Producer<byte[]> producer = producer(topic(name));
            producer.send(("of " + name).getBytes());
        }
        for (int place = 0; place < 2; place++) {
            Message<byte[]> message = consumers.get(place).receive(20, TimeUnit.SECONDS);
            consumers.get(place).reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
        }
        for (int place = 0; place < 2; place++) {
            Message<byte[]> again = consumers.get(place).receive(20, TimeUnit.SECONDS);
            check(again != null, "the message did not come again");
            same(new String(again.getData(), StandardCharsets.UTF_8), place == 0 ? "of a" : "of b");
            consumers.get(place).acknowledge(again);
            check(consumers.get(place).receive(500, TimeUnit.MILLISECONDS) == null, "a message of the other topic");
        }
        List<String> topics = admin.topics().getList(namespace);
        check(topics.contains(topic("a-s-RETRY")) && topics.contains(topic("b-s-RETRY")), topics.toString());
        check(!topics.contains(topic("s-RETRY")), topics.toString());
    }

    public void testDeadLettersOfTwoTopicsAreTwo() throws Exception {
        for (String name : List.of("a", "b")) {
            Consumer<byte[]> consumer = client.newConsumer().topic(topic(name)).subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .deadLetterPolicy(org.apache.pulsar.client.api.DeadLetterPolicy.builder()
                            .maxRedeliverCount(1).initialSubscriptionName("kept").build()).subscribe();
            producer(topic(name)).send(("of " + name).getBytes());
            for (int delivery = 0; delivery < 2; delivery++) {
                consumer.negativeAcknowledge(consumer.receive(20, TimeUnit.SECONDS));
            }
            consumer.receive(3, TimeUnit.SECONDS);
            Message<byte[]> dead = consumer(topic(name + "-s-DLQ"), "kept").receive(20, TimeUnit.SECONDS);
            same(new String(dead.getData(), StandardCharsets.UTF_8), "of " + name);
        }
    }

    // ---- Who sends or receives is always told

    public void testProducerOfATopicThatIsTerminated() throws Exception {
        Producer<byte[]> producer = producer(topic("t"));
        Consumer<byte[]> consumer = consumer(topic("t"), "s");
        int receipts = sendingAcross(producer, () -> admin.topics().terminateTopicAsync(topic("t")));
        check(receipts > 0, "no message was stored");
        for (int number = 0; number < receipts; number++) {
            Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
            check(message != null, "message " + number + " of " + receipts + " did not come");
            consumer.acknowledge(message);
        }
        for (int wait = 0; wait < 200 && !consumer.hasReachedEndOfTopic(); wait++) {
            Thread.sleep(50);
        }
        check(consumer.hasReachedEndOfTopic(), "the consumer does not learn that the topic has ended");
        fails(PulsarClientException.class, () -> producer(topic("t")));
    }

    public void testProducerOfATopicThatIsUnloaded() throws Exception {
        Producer<byte[]> producer = producer(topic("t"));
        Consumer<byte[]> consumer = consumer(topic("t"), "s");
        same(sendingAcross(producer, () -> admin.topics().unloadAsync(topic("t"))), 400);
        Set<String> seen = new HashSet<>();
        while (seen.size() < 400) {
            Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
            check(message != null, "only " + seen.size() + " of 400 came");
            seen.add(new String(message.getData(), StandardCharsets.UTF_8));
            consumer.acknowledge(message);
        }
    }

    public void testProducerOfANamespaceThatIsUnloaded() throws Exception {
        Producer<byte[]> producer = producer(topic("t"));
        same(sendingAcross(producer, () -> admin.namespaces().unloadAsync(namespace)), 400);
    }

    public void testProducerOfATopicThatIsDeleted() throws Exception {
        Producer<byte[]> producer = producer(topic("t"));
        Consumer<byte[]> consumer = consumer(topic("t"), "s");
        sendingAcross(producer, () -> admin.topics().deleteAsync(topic("t"), true));
        producer.sendAsync("last".getBytes()).get(ENDS_S, TimeUnit.SECONDS); // it was created again
        consumer.closeAsync().get(ENDS_S, TimeUnit.SECONDS);
        producer.closeAsync().get(ENDS_S, TimeUnit.SECONDS);
    }

    public void testProducerThatIsFenced() throws Exception {
        Producer<byte[]> producer = client.newProducer().topic(topic("t")).enableBatching(false).blockIfQueueFull(true)
                .accessMode(ProducerAccessMode.Exclusive).sendTimeout(20, TimeUnit.SECONDS).create();
        PulsarClient other = PulsarClient.builder().serviceUrl(url).build();
        CompletableFuture<?>[] taking = new CompletableFuture<?>[1];
        sendingAcross(producer, () -> taking[0] = other.newProducer().topic(topic("t"))
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).createAsync());
        Producer<?> taker = (Producer<?>) taking[0].get(ENDS_S, TimeUnit.SECONDS);
        fails(PulsarClientException.class, () -> producer.send("late".getBytes()));
        ((Producer<byte[]>) taker).sendAsync("mine".getBytes()).get(ENDS_S, TimeUnit.SECONDS);
        other.closeAsync();
    }

    public void testWaitingForExclusiveAccess() throws Exception {
        Producer<byte[]> first = client.newProducer().topic(topic("t")).accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<byte[]>> second = client.newProducer().topic(topic("t"))
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        fails(TimeoutException.class, () -> second.get(1, TimeUnit.SECONDS));
        first.close();
        second.get(ENDS_S, TimeUnit.SECONDS).send("mine".getBytes());
    }

    public void testProducerOverTheBacklogQuota() throws Exception {
        for (BacklogQuota.RetentionPolicy policy : List.of(BacklogQuota.RetentionPolicy.producer_exception,
                BacklogQuota.RetentionPolicy.producer_request_hold)) {
            String topic = topic(policy.name());
            consumer(topic, "s").close();
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                    .sendTimeout(10, TimeUnit.SECONDS).create();
            admin.namespaces().setBacklogQuota(namespace,
                    BacklogQuota.builder().limitSize(2000).retentionPolicy(policy).build());
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 150; number++) { // across several checks of the quota
                sent.add(producer.sendAsync(new byte[100]));
                Thread.sleep(100);
                if (number > 30 && sent.get(number - 20).isCompletedExceptionally()) {
                    break;
                }
            }
            ended(sent);
            admin.namespaces().removeBacklogQuota(namespace);
            producer.closeAsync().get(ENDS_S, TimeUnit.SECONDS);
        }
    }

    // ---- Readers and schemas

    public void testReaderOfSomeHashes() throws Exception {
        Producer<byte[]> producer = producer(topic("t"));
        Set<String> expected = new HashSet<>();
        for (int number = 0; number < 100; number++) {
            String key = "key-" + number;
            producer.newMessage().key(key).value(key.getBytes()).send();
            if (Murmur3_32Hash.getInstance().makeHash(key.getBytes()) % 65536 <= 32767) {
                expected.add(key);
            }
        }
        check(expected.size() > 10 && expected.size() < 90, "the keys are too much alike");
        Reader<byte[]> reader = client.newReader().topic(topic("t")).startMessageId(MessageId.earliest)
                .keyHashRange(Range.of(0, 32767)).create();
        Set<String> found = new HashSet<>();
        for (Message<byte[]> message = reader.readNext(5, TimeUnit.SECONDS); message != null;
                message = reader.readNext(2, TimeUnit.SECONDS)) {
            found.add(message.getKey());
        }
        same(found, expected);
    }

    public static class Person {
        public String name;
    }

    public void testDeletedSchema() throws Exception {
        Producer<Person> producer = client.newProducer(Schema.JSON(Person.class)).topic(topic("t")).create();
        same(admin.schemas().getSchemaInfoWithVersion(topic("t")).getVersion(), 0L);
        producer.close();
        admin.schemas().deleteSchema(topic("t"));
        fails(PulsarAdminException.NotFoundException.class, () -> admin.schemas().getSchemaInfo(topic("t")));
        fails(PulsarAdminException.NotFoundException.class, () -> admin.schemas().getSchemaInfo(topic("t"), 0));
        client.newProducer(Schema.STRING).topic(topic("t")).create().send("now a text");
        Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic("t"))
                .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        same(consumer.receive(20, TimeUnit.SECONDS).getValue().getNativeObject(), "now a text");
    }

    public void testBytesAndASchema() throws Exception {
        client.newProducer(Schema.JSON(Person.class)).topic(topic("t")).create().close();
        Producer<byte[]> automatic = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic("t")).create();
        automatic.send("{\"name\":\"Ada\"}".getBytes());
        Consumer<Person> consumer = client.newConsumer(Schema.JSON(Person.class)).topic(topic("t")).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        same(consumer.receive(20, TimeUnit.SECONDS).getValue().name, "Ada");
        fails(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.STRING).topic(topic("t")).create());
    }

    // ---- What is missing is told as such

    public void testMissingTenantAndNamespace() throws Exception {
        for (String topic : List.of("persistent://nobody/none/t", "persistent://public/none/t")) {
            fails(PulsarClientException.class, () -> client.newProducer().topic(topic).create());
            fails(PulsarClientException.class, () -> client.newConsumer().topic(topic).subscriptionName("s").subscribe());
        }
        same(fails(PulsarAdminException.NotFoundException.class, () -> admin.tenants().getTenantInfo("nobody")).getHttpError(),
                "Tenant does not exist");
        same(fails(PulsarAdminException.NotFoundException.class, () -> admin.namespaces().getNamespaces("nobody"))
                .getHttpError(), "Tenant not found");
        same(fails(PulsarAdminException.NotFoundException.class, () -> admin.topics().getStats("public/none/t"))
                .getHttpError(), "Namespace not found");
        same(fails(PulsarAdminException.NotFoundException.class, () -> admin.namespaces().getPolicies("public/none"))
                .getHttpError(), "Namespace does not exist");
        same(fails(PulsarAdminException.NotFoundException.class, () -> admin.topics().getList("public/none"))
                .getHttpError(), "Namespace does not exist");
        same(fails(PulsarAdminException.NotFoundException.class,
                () -> admin.namespaces().createNamespace("nobody/none")).getHttpError(), "Tenant does not exist");
    }

    public void testSubscriptionWithTheNameOfARoute() throws Exception {
        for (String name : List.of("subscription", "stats", "backlog")) {
            consumer(topic("t"), name).close();
            check(admin.topics().getSubscriptions(topic("t")).contains(name), name + " is not there");
            admin.topics().skipAllMessages(topic("t"), name);
            admin.topics().deleteSubscription(topic("t"), name);
        }
        check(admin.topics().getSubscriptions(topic("t")).isEmpty(), "a subscription is left");
    }

    public void testPeekAtAnUnknownSubscription() throws Exception {
        producer(topic("t")).send("x".getBytes());
        same(new String(admin.topics().peekMessages(topic("t"), "none", 1).get(0).getData()), "x");
    }

    // ---- The admin client

    public void testNamespaceAndTenant() throws Exception {
        String name = namespace + "-more";
        admin.namespaces().createNamespace(name);
        check(admin.namespaces().getNamespaces("public").contains(name), "it is not there");
        check(!admin.namespaces().getNamespaceReplicationClusters(name).isEmpty(), "it has no cluster");
        admin.namespaces().deleteNamespace(name);
    }

    public void testPeekAndExamineShowProperties() throws Exception {
        consumer(topic("t"), "s").close();
        MessageId sent = client.newProducer().topic(topic("t")).create().newMessage().key("k").value("x".getBytes())
                .property("a", "1").property("b", "2").send();
        for (Message<byte[]> message : List.of(admin.topics().peekMessages(topic("t"), "s", 1).get(0),
                admin.topics().examineMessage(topic("t"), "earliest", 1))) {
            same(message.getProperty("a"), "1");
            same(message.getProperty("b"), "2");
            same(new String(message.getData(), StandardCharsets.UTF_8), "x");
        }
        check(sent != null, "no id");
    }

    public void testStatsOfATopic() throws Exception {
        consumer(topic("t"), "s").close();
        producer(topic("t")).send("x".getBytes());
        TopicStats stats = admin.topics().getStats(topic("t"), true, true, true);
        same(stats.getSubscriptions().get("s").getMsgBacklog(), 1L);
        check(stats.getSubscriptions().get("s").getBacklogSize() > 0, "backlogSize is not known");
        check(stats.getBacklogQuotaLimitSize() != 0, "backlogQuotaLimitSize is not known");
        check(stats.getMsgInCounter() == 1 && stats.getBytesInCounter() > 0, "the counters are wrong");
    }

    public void testPropertiesAndNumberOfPartitions() throws Exception {
        admin.topics().createPartitionedTopic(topic("p"), 2, Map.of("a", "1"));
        admin.topics().updateProperties(topic("p"), Map.of("b", "2"));
        same(admin.topics().getProperties(topic("p")), Map.of("a", "1", "b", "2"));
        admin.topics().removeProperties(topic("p"), "a");
        same(admin.topics().getProperties(topic("p")), Map.of("b", "2"));
        admin.topics().updatePartitionedTopic(topic("p"), 3);
        same(admin.topics().getPartitionedTopicMetadata(topic("p")).partitions, 3);
        admin.topics().deletePartitionedTopic(topic("p"), true);
    }

    public void testBacklogAndLastMessage() throws Exception {
        consumer(topic("t"), "s").close();
        MessageId last = producer(topic("t")).send("x".getBytes());
        same(admin.topics().getLastMessageId(topic("t")).toString(), last.toString());
        same(admin.topics().analyzeSubscriptionBacklog(topic("t"), "s", java.util.Optional.empty()).getEntries(), 1L);
        admin.topics().expireMessages(topic("t"), "s", 100_000);
    }
}
