package main

import (
	"context"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func keep(servers primitive.NamesrvAddr, topic, group string) {
	member := must(rocketmq.NewPushConsumer(consumer.WithNameServer(servers),
		consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)))
	must(0, member.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				say("handled", string(message.Body))
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(0, member.Start())
	sender := started(rocketmq.NewProducer(producer.WithNameServer(servers),
		producer.WithGroupName(group+"-shop")))
	ended := make(chan bool)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	say("ready", "")
	for number := 0; ; number++ {
		text := strconv.Itoa(number)
		result, problem := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(text)))
		if problem == nil && result.Status == primitive.SendOK {
			say("sent", text)
		}
		select {
		case <-ended:
			say("ended", "")
			select {} // The consumer goes on.
		case <-time.After(10 * time.Millisecond):
		}
	}
}
