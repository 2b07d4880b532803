package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func asking(servers primitive.NamesrvAddr, group string) rocketmq.Producer {
	return started(rocketmq.NewProducer(append(producerOptions, producer.WithNameServer(servers),
		producer.WithGroupName(group))...))
}

func ask(servers primitive.NamesrvAddr, topic string) {
	requester := asking(servers, "go-asking")
	for number := 0; number < 2; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("go %d", number)))
		reply := must(requester.Request(context.Background(), 30*time.Second, message))
		say("reply", string(reply.Body), reply.GetProperty("number"))
	}
}

func answer(servers primitive.NamesrvAddr, topic string) {
	replier := asking(servers, "go-replying")
	member := must(rocketmq.NewPushConsumer(append(consumerOptions, consumer.WithNameServer(servers),
		consumer.WithGroupName("go-answering"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))...))
	must(0, member.Subscribe(topic, consumer.MessageSelector{},
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				reply := must(consumer.CreateReplyMessage(message, nil))
				reply.Body = append([]byte("re: "), message.Body...)
				reply.WithProperty("number", "7")
				must(replier.SendSync(ctx, reply))
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(0, member.Start())
	say("ready", topic)
	time.Sleep(time.Hour)
}
