/* A server that stores nothing: it answers each send of the load generator with the same text, and
 * each pull with records copied from memory, one by one, as those of one queue lie in a log.
 *
 *   cc -O2 -o floor floor.c && ./floor PORT
 *
 * Its rate is an upper limit, set by sockets, wake-ups and the load generator, for any broker on
 * this machine. One thread and epoll, one answer per frame, one write per read. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 256 * 1024, BUFFER_BYTES = 32 * 1024 * 1024, MAX_DESCRIPTOR = 1024 };
enum { RECORDS = 200000, RECORD_BYTES = 1200, QUEUES = 4, PULLED = 32 };

struct peer {
  unsigned char *buffer;
  size_t length;
};

static struct peer peers[MAX_DESCRIPTOR];
static unsigned char answers[BUFFER_BYTES];

static const char ANSWER[] =
    "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"TRACE_ON\":\"true\",\"MSG_REGION\":"
    "\"DefaultRegion\",\"msgId\":\"7F000001000051AF0000000000000000\",\"queueOffset\":\"0\"},"
    "\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\","
    "\"version\":407}";

static const char FOUND[] =
    "{\"code\":%d,\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"maxOffset\":\"50000\","
    "\"nextBeginOffset\":\"%ld\",\"minOffset\":\"0\"},\"flag\":1,\"language\":\"JAVA\","
    "\"opaque\":%ld,\"remark\":\"FOUND\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}";

static unsigned char *records;

static uint32_t get32(const unsigned char *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return ntohl(value);
}

static void put32(unsigned char *at, uint32_t value) {
  value = htonl(value);
  memcpy(at, &value, 4);
}

static long number_after(const unsigned char *header, size_t length, const char *name) {
  const char *found = memmem(header, length, name, strlen(name));
  return found ? strtol(found + strlen(name), NULL, 10) : 0;
}

static void make_records(void) {
  records = malloc((size_t)RECORDS * RECORD_BYTES);
  memset(records, 'x', (size_t)RECORDS * RECORD_BYTES);
  for (size_t n = 0; n < RECORDS; n++) put32(records + n * RECORD_BYTES, RECORD_BYTES);
}

static size_t answer_pull(unsigned char *at, const unsigned char *header, size_t length) {
  long queue = number_after(header, length, "\"queueId\":\"");
  long offset = number_after(header, length, "\"queueOffset\":\"");
  int count = offset + PULLED <= RECORDS / QUEUES ? PULLED : 0;
  int text = sprintf((char *)at + 8, FOUND, count ? 0 : 19, offset + count,
                     number_after(header, length, "\"opaque\":"));
  for (int n = 0; n < count; n++)
    memcpy(at + 8 + text + n * RECORD_BYTES,
           records + ((offset + n) * QUEUES + queue) * RECORD_BYTES, RECORD_BYTES);
  put32(at, 4 + text + count * RECORD_BYTES);
  put32(at + 4, text);
  return 8 + text + count * RECORD_BYTES;
}

static size_t answer(unsigned char *at, const unsigned char *header, size_t length) {
  if (!memcmp(header, "{\"code\":11,", 11)) return answer_pull(at, header, length);
  int text = sprintf((char *)at + 8, ANSWER, number_after(header, length, "\"opaque\":"));
  put32(at, 4 + text);
  put32(at + 4, text);
  return 8 + text;
}

/* Answer the complete requests that have arrived; return whether the connection is still open. */
static int serve(int descriptor) {
  struct peer *peer = &peers[descriptor];
  ssize_t got = read(descriptor, peer->buffer + peer->length, READ_BYTES);
  if (got <= 0) return 0;
  peer->length += got;
  size_t at = 0, out = 0;
  while (peer->length - at >= 8) {
    size_t size = 4 + get32(peer->buffer + at);
    if (peer->length - at < size) break;
    out += answer(answers + out, peer->buffer + at + 8, get32(peer->buffer + at + 4) & 0xffffff);
    at += size;
  }
  memmove(peer->buffer, peer->buffer + at, peer->length - at);
  peer->length -= at;
  for (size_t sent = 0; sent < out;) {
    ssize_t more = write(descriptor, answers + sent, out - sent);
    if (more <= 0) return 0;
    sent += more;
  }
  return 1;
}

int main(int argc, char **argv) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), on = 1;
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
    perror("floor");
    return 1;
  }
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
  epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
  make_records();
  for (;;) {
    if (epoll_wait(poll, &event, 1, -1) < 1) continue;
    int descriptor = event.data.fd;
    if (descriptor == listener) {
      descriptor = accept(listener, NULL, NULL);
      if (descriptor < 0 || descriptor >= MAX_DESCRIPTOR) continue;
      setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      peers[descriptor] = (struct peer){malloc(BUFFER_BYTES), 0};
      event = (struct epoll_event){.events = EPOLLIN, .data.fd = descriptor};
      epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event);
    } else if (!serve(descriptor)) {
      free(peers[descriptor].buffer);
      close(descriptor);
    }
  }
}
