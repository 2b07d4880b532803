package main

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const patience = time.Minute

type listener struct{ asked chan string }

func (l listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch strings.Fields(string(message.Body))[0] {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	// Unknown, whose name is spelled in two ways.
	return primitive.RollbackMessageState + 1
}

func (l listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.asked <- string(message.Body)
	return primitive.CommitMessageState
}

func deal(servers primitive.NamesrvAddr, topic string) {
	asked := make(chan string, 100)
	dealer := started(rocketmq.NewTransactionProducer(listener{asked}, append(producerOptions,
		producer.WithNameServer(servers), producer.WithGroupName("go-dealers"))...))
	for _, end := range []string{"commit", "rollback", "unknown"} {
		for number := 0; number < 2; number++ {
			body := fmt.Sprintf("%s %d", end, number)
			must(dealer.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body))))
		}
	}
	for number := 0; number < 2; number++ {
		select {
		case body := <-asked:
			say("asked", body)
		case <-time.After(patience):
			log.Fatal("not asked")
		}
	}
	// The answer goes out behind the call.
	time.Sleep(500 * time.Millisecond)
}
