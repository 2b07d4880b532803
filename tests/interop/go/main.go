// The unmodified Go client of Apache RocketMQ, driven from the tests. One fact a line, fields
// separated by tabs. It signs its requests if ACCESS_KEY and SECRET_KEY are set. Built with the tag
// tls, deal, ask and answer connect with TLS.
//
//	filter NAMESRV TOPIC GROUP COUNT EXPRESSION   say "ready", then the bodies of COUNT messages
//	deal   NAMESRV TOPIC   transactions: two of each end; then commit the two that the broker asks about
//	ask    NAMESRV TOPIC   two requests
//	trace  NAMESRV TOPIC   send and consume a message, both traced; its id, "done", and on until killed
//	keep   NAMESRV TOPIC GROUP   send numbers until the input ends, and consume them: "sent", "handled", and so on
//	answer NAMESRV TOPIC   say "ready", then answer every request with its body behind "re: "
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}
}

var producerOptions = []producer.Option{producer.WithCredentials(credentials())}
var consumerOptions = []consumer.Option{consumer.WithCredentials(credentials())}

func say(fields ...string) {
	fmt.Println(strings.Join(fields, "\t"))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func started[T interface{ Start() error }](member T, err error) T {
	must(member, err)
	must(0, member.Start())
	return member
}

func check(problem error) {
	if problem != nil {
		fmt.Println("error\t" + problem.Error())
		os.Exit(1)
	}
}

func filter(namesrv, topic, group, count, expression string) {
	left, problem := strconv.Atoi(count)
	check(problem)
	var lock sync.Mutex
	complete := make(chan bool)
	made, problem := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(problem)
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			fmt.Println("message\t" + string(message.Body))
			left--
			if left == 0 {
				close(complete)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	check(made.Subscribe(topic, selector, handle))
	check(made.Start())
	fmt.Println("ready\t")
	select {
	case <-complete:
		time.Sleep(500 * time.Millisecond)
	case <-time.After(60 * time.Second):
	}
	check(made.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	servers, topic := primitive.NamesrvAddr{os.Args[2]}, os.Args[3]
	switch os.Args[1] {
	case "deal":
		deal(servers, topic)
	case "ask":
		ask(servers, topic)
	case "trace":
		trace(servers, topic)
	case "keep":
		keep(servers, topic, os.Args[4])
	case "answer":
		answer(servers, topic)
	default:
		filter(os.Args[2], topic, os.Args[4], os.Args[5], os.Args[6])
	}
	fmt.Println("done")
}
