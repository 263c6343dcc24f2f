// Package notices: what the Go client is told when its topic is terminated, unloaded, deleted, over its quota or another producer's while
// it sends and receives. Nothing may be left waiting. `make compat-all ARGS=go-notices` copies this into the client's module and runs it
// against a server that allows everybody everything.
package notices

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	serviceURL = "pulsar://localhost:6650"
	adminURL   = "http://localhost:8080/admin/v2/"
	ends       = 40 * time.Second
	messages   = 400
)

func newTopic(name string) string {
	return fmt.Sprintf("persistent://public/default/notices-%s-%d", name, time.Now().UnixNano())
}

func call(t *testing.T, method, path, body string) {
	request, err := http.NewRequest(method, adminURL+path, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, answer.Status)
	}
}

func restPath(topic string) string {
	return strings.Replace(topic, "://", "/", 1)
}

func newClient(t *testing.T) pulsar.Client {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL, OperationTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func newProducer(t *testing.T, client pulsar.Client, topic string, mode pulsar.ProducerAccessMode) pulsar.Producer {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, SendTimeout: 15 * time.Second, ProducerAccessMode: mode,
	})
	if err != nil {
		t.Fatal(err)
	}
	return producer
}

// endsIn fails the test when `what` has not ended in time.
func endsIn(t *testing.T, name string, what func()) {
	done := make(chan struct{})
	go func() { defer close(done); what() }()
	select {
	case <-done:
	case <-time.After(ends):
		t.Fatalf("%s hangs", name)
	}
}

// sendAcross sends from before to after `event`; each message ends. The numbers of messages and of receipts.
func sendAcross(t *testing.T, producer pulsar.Producer, event func()) (sent, receipts int) {
	var waiting sync.WaitGroup
	var lock sync.Mutex
	send := func(number int) {
		waiting.Add(1)
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				lock.Lock()
				if err == nil {
					receipts++
				}
				lock.Unlock()
				waiting.Done()
			})
	}
	endsIn(t, "a producer", func() {
		changed := make(chan struct{})
		for after := 0; after < messages/2; sent++ {
			if sent == messages/2 {
				go func() { defer close(changed); event() }()
			}
			select {
			case <-changed:
				after++
			default:
			}
			send(sent)
			time.Sleep(time.Millisecond)
		}
		waiting.Wait()
	})
	lock.Lock()
	defer lock.Unlock()
	return sent, receipts
}

func subscribe(t *testing.T, client pulsar.Client, topic string) pulsar.Consumer {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		t.Fatal(err)
	}
	return consumer
}

// receiveAll waits for so many different messages.
func receiveAll(t *testing.T, consumer pulsar.Consumer, count int) {
	seen := map[string]bool{}
	limit, cancel := context.WithTimeout(context.Background(), ends)
	defer cancel()
	for len(seen) < count {
		message, err := consumer.Receive(limit)
		if err != nil {
			t.Fatalf("%d of %d messages came: %v", len(seen), count, err)
		}
		seen[string(message.Payload())] = true
		_ = consumer.Ack(message)
	}
}

func TestTerminated(t *testing.T) {
	topic, client := newTopic("terminated"), newClient(t)
	producer, consumer := newProducer(t, client, topic, pulsar.ProducerAccessModeShared), subscribe(t, client, topic)
	sent, receipts := sendAcross(t, producer, func() { call(t, "POST", restPath(topic)+"/terminate", "") })
	if receipts == 0 || receipts == sent {
		t.Fatalf("%d of %d have receipts", receipts, sent)
	}
	receiveAll(t, consumer, receipts)
	endsIn(t, "Close of the producer", producer.Close)
	endsIn(t, "Close of the consumer", consumer.Close)
}

func TestUnloaded(t *testing.T) {
	topic, client := newTopic("unloaded"), newClient(t)
	producer, consumer := newProducer(t, client, topic, pulsar.ProducerAccessModeShared), subscribe(t, client, topic)
	sent, receipts := sendAcross(t, producer, func() { call(t, "PUT", restPath(topic)+"/unload", "") })
	if receipts != sent {
		t.Fatalf("%d of %d have receipts", receipts, sent)
	}
	receiveAll(t, consumer, sent)
	endsIn(t, "Close of the producer", producer.Close)
	endsIn(t, "Close of the consumer", consumer.Close)
}

func TestDeleted(t *testing.T) {
	topic, client := newTopic("deleted"), newClient(t)
	producer, consumer := newProducer(t, client, topic, pulsar.ProducerAccessModeShared), subscribe(t, client, topic)
	sendAcross(t, producer, func() { call(t, "DELETE", restPath(topic)+"?force=true", "") })
	endsIn(t, "Close of the consumer", consumer.Close)
	endsIn(t, "Close of the producer", producer.Close)
}

// The client has no mode that fences another producer: that is among the scenarios in Java.
func TestWaitingForExclusiveAccess(t *testing.T) {
	topic, client := newTopic("waiting"), newClient(t)
	first := newProducer(t, client, topic, pulsar.ProducerAccessModeExclusive)
	var second pulsar.Producer
	created := make(chan struct{})
	go func() {
		defer close(created)
		second = newProducer(t, newClient(t), topic, pulsar.ProducerAccessModeWaitForExclusive)
	}()
	sendAcross(t, first, func() {})
	endsIn(t, "Close of the first producer", first.Close)
	endsIn(t, "the producer that waits", func() { <-created })
	if sent, receipts := sendAcross(t, second, func() {}); receipts != sent {
		t.Fatalf("%d of %d have receipts", receipts, sent)
	}
	endsIn(t, "Close of the second producer", second.Close)
}

func TestOverTheQuota(t *testing.T) {
	for _, policy := range []string{"producer_exception", "producer_request_hold"} {
		namespace := fmt.Sprintf("public/notices-%d", time.Now().UnixNano())
		call(t, "PUT", "namespaces/"+namespace, "{}")
		topic, client := fmt.Sprintf("persistent://%s/t", namespace), newClient(t)
		subscribe(t, client, topic).Close()
		producer := newProducer(t, client, topic, pulsar.ProducerAccessModeShared)
		sendAcross(t, producer, func() {})
		call(t, "POST", "namespaces/"+namespace+"/backlogQuota?backlogQuotaType=destination_storage",
			fmt.Sprintf(`{"limitSize":100,"limitTime":-1,"policy":"%s"}`, policy))
		time.Sleep(7 * time.Second) // the quota is looked at every 5 s
		sendAcross(t, producer, func() {})
		endsIn(t, "Close of a producer over its quota", producer.Close)
	}
}
