/* The common code of all modes of loadgen.c: options, time, latencies, CPU time, connections. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#endif

enum { MAX_CONNECTIONS = 1024, MAX_PIDS = 16 };
enum { FRAME_BYTES = 8 << 20 };

static struct {
  const char *mode, *addr, *topic;
  int conns, inflight, size, queues, batch, max, topics, vary, forms, pids[MAX_PIDS], pid_count;
  long count;
  double secs, warm, rate;
} opt = {.addr = "127.0.0.1:10911", .topic = "bench", .conns = 1, .inflight = 1, .size = 1024,
         .queues = 4, .batch = 100, .max = 32, .topics = 1, .secs = 5, .warm = 1, .rate = 500};

struct connection {
  int fd;
#ifdef TLS
  SSL *tls;
#endif
  unsigned char *in, *out;
  size_t in_used, in_size, out_start, out_end, out_size;
  bool waits_to_write;
};

struct answer {
  uint32_t opaque;
  int code, header_length, body_length;
  const char *header;
  const unsigned char *body;
};

typedef void (*handler)(struct connection *, const struct answer *);

static struct connection connections[MAX_CONNECTIONS];
static int poll_fd;
static unsigned char frame[FRAME_BYTES];
static uint64_t errors;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static long long wall_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void put32(unsigned char *at, uint32_t value) {
  value = htonl(value);
  memcpy(at, &value, 4);
}

static uint32_t get32(const unsigned char *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return ntohl(value);
}

/* Latencies: 64 buckets for each power of two, so that the error of a quantile is at most 3 %. */

static uint64_t buckets[64 * 64], latencies;

static void note_latency(uint64_t ns) {
  int shift = ns < 64 ? 0 : 58 - __builtin_clzll(ns);
  buckets[shift * 64 + ((ns >> shift) & 63)]++;
  latencies++;
}

static double quantile_us(double share) {
  uint64_t wanted = (uint64_t)(share * latencies), seen = 0;
  for (int i = 0; i < 64 * 64; i++) {
    seen += buckets[i];
    if (seen > wanted) return ((uint64_t)(i & 63) << (i / 64)) / 1e3;
  }
  return 0;
}

/* CPU seconds of the processes given with --pid. */
static double cpu_seconds(void) {
  double total = 0;
  for (int i = 0; i < opt.pid_count; i++) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", opt.pids[i]);
    int fd = open(path, O_RDONLY);
    if (fd < 0) continue;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) continue;
    text[length] = 0;
    unsigned long user = 0, system = 0;
    const char *after_name = strrchr(text, ')');
    if (after_name)
      sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    total += (double)(user + system) / sysconf(_SC_CLK_TCK);
  }
  return total;
}

/* Reading and writing. Both return -1 with EAGAIN in errno when they would block. */

#ifdef TLS
static void start_tls(struct connection *c) {
  static SSL_CTX *context;
  if (!context) {
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  c->tls = SSL_new(context);
  SSL_set_fd(c->tls, c->fd);
  if (SSL_connect(c->tls) != 1) die("the TLS handshake failed");
  fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
}

static ssize_t tls_result(struct connection *c, int n) {
  int error = n > 0 ? SSL_ERROR_NONE : SSL_get_error(c->tls, n);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) errno = EAGAIN;
  return n > 0 || error == SSL_ERROR_ZERO_RETURN ? n : -1;
}

static ssize_t read_some(struct connection *c, void *to, size_t room) {
  errno = 0;
  return tls_result(c, SSL_read(c->tls, to, room));
}

static ssize_t write_some(struct connection *c, const void *from, size_t length) {
  errno = 0;
  return tls_result(c, SSL_write(c->tls, from, length));
}
#else
static void start_tls(struct connection *c) { (void)c; }

static ssize_t read_some(struct connection *c, void *to, size_t room) {
  return recv(c->fd, to, room, MSG_DONTWAIT);
}

static ssize_t write_some(struct connection *c, const void *from, size_t length) {
  return send(c->fd, from, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}
#endif

/* Connections. */

static void open_connections(int count) {
  char host[64];
  const char *colon = strrchr(opt.addr, ':');
  if (!colon) die("--addr wants HOST:PORT");
  snprintf(host, sizeof host, "%.*s", (int)(colon - opt.addr), opt.addr);
  struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(colon + 1))};
  inet_pton(AF_INET, host, &peer.sin_addr);
  poll_fd = epoll_create1(0);
  for (int i = 0; i < count; i++) {
    struct connection *c = &connections[i];
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&peer, sizeof peer)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    start_tls(c);
    c->in_size = 4 << 20;
    c->in = malloc(c->in_size);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
  }
}

static void queue_frame(struct connection *c, size_t length) {
  if (c->out_start == c->out_end) c->out_start = c->out_end = 0;
  if (c->out_end + length > c->out_size) {
    c->out_size = (c->out_end + length) * 2;
    c->out = realloc(c->out, c->out_size);
  }
  memcpy(c->out + c->out_end, frame, length);
  c->out_end += length;
}

static void flush(struct connection *c) {
  while (c->out_start < c->out_end) {
    ssize_t n = write_some(c, c->out + c->out_start, c->out_end - c->out_start);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) die("send");
    c->out_start += n;
  }
  bool waits = c->out_start < c->out_end;
  if (waits != c->waits_to_write) {
    struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
    c->waits_to_write = waits;
  }
}

static long number_after(const char *text, int length, const char *name, long otherwise) {
  const char *at = memmem(text, length, name, strlen(name));
  if (!at) return otherwise;
  at += strlen(name);
  return strtol(*at == '"' ? at + 1 : at, NULL, 10);
}

static void take_answers(struct connection *c, handler handle) {
  size_t at = 0;
  while (c->in_used - at >= 8 && c->in_used - at - 4 >= get32(c->in + at)) {
    struct answer a = {.header = (char *)c->in + at + 8};
    uint32_t length = get32(c->in + at);
    a.header_length = get32(c->in + at + 4) & 0xffffff;
    a.body = c->in + at + 8 + a.header_length;
    a.body_length = length - 4 - a.header_length;
    if (c->in[at + 4] == 1) { /* the binary header: code, language, version, opaque */
      a.code = get32(c->in + at + 8) >> 16;
      a.opaque = get32(c->in + at + 13);
    } else {
      a.opaque = number_after(a.header, a.header_length, "\"opaque\":", 0);
      a.code = number_after(a.header, a.header_length, "\"code\":", -1);
    }
    handle(c, &a);
    at += 4 + length;
  }
  memmove(c->in, c->in + at, c->in_used - at);
  c->in_used -= at;
}

static void receive(struct connection *c, handler handle) {
  for (;;) {
    if (c->in_used == c->in_size) c->in = realloc(c->in, c->in_size *= 2);
    size_t room = c->in_size - c->in_used;
    ssize_t n = read_some(c, c->in + c->in_used, room);
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      fprintf(stderr, "the broker closed the connection\n");
      exit(3);
    }
    c->in_used += n;
#ifndef TLS /* a read returns one record at most */
    if ((size_t)n < room) break;
#endif
  }
  take_answers(c, handle);
}

static void turn(handler handle, int timeout_ms) {
  struct epoll_event events[256];
  int count = epoll_wait(poll_fd, events, 256, timeout_ms);
  for (int i = 0; i < count; i++) {
    struct connection *c = events[i].data.ptr;
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c, handle);
    flush(c);
  }
}

static void complain(const struct answer *a) {
  if (errors++ < 3)
    fprintf(stderr, "code %d: %.*s\n", a->code, a->header_length, a->header);
}
