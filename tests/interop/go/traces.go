package main

import (
	"context"
	"fmt"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func trace(servers primitive.NamesrvAddr, topic string) {
	config := &primitive.TraceConfig{Access: primitive.Local, NamesrvAddrs: servers}
	member := must(rocketmq.NewPushConsumer(consumer.WithNameServer(servers),
		consumer.WithGroupName("go-billing"), consumer.WithTrace(config),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)))
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "go"}
	must(0, member.Subscribe(topic, selector,
		func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			return consumer.ConsumeSuccess, nil
		}))
	must(0, member.Start())
	sender := started(rocketmq.NewProducer(producer.WithNameServer(servers),
		producer.WithGroupName("go-shop"), producer.WithTrace(config)))
	message := primitive.NewMessage(topic, []byte("tea")).WithTag("go").WithKeys([]string{"o-1"})
	say("plain", must(sender.SendSync(context.Background(), message)).MsgID)
	fmt.Println("done")
	// The records go out behind the send and the handler.
	select {}
}
