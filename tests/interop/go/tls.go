//go:build tls

package main

import (
	"os"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Version 2.1.2, the last release, has no TLS: tls.mod names a commit after it.
func init() {
	useTls := os.Getenv("TLS") != ""
	producerOptions = append(producerOptions, producer.WithTls(useTls))
	consumerOptions = append(consumerOptions, consumer.WithTls(useTls))
}
