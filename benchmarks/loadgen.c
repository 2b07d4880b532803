/* A load generator for the RocketMQ remoting protocol, the same for all brokers.
 *
 *   cc -O2 -o loadgen loadgen.c
 *   cc -O2 -DTLS -o loadgen-tls loadgen.c -lssl -lcrypto    with TLS; it verifies no certificate
 *   loadgen send  --addr H:P --topic T --conns C --inflight K --size S --secs N
 *   loadgen batch ... and --batch B, the messages of each SEND_BATCH_MESSAGE
 *   loadgen pull  --addr H:P --topic T --conns C --max M --secs N    all queues, again and again
 *   loadgen push  --addr H:P --topic T --rate R --size S --secs N    from send to delivery
 *
 * All: --queues Q, --warm W (seconds at the start that don't count), --count N (stop after so many
 * messages), --pid P (may be repeated: the CPU time of that process while it counts), --topics T
 * (by chance), --vary 1 (bodies of S/4 to 7S/4 bytes and five properties; pulls keep one tag of
 * five), --forms 1 (the connections write headers as Java's JSON, Java's ROCKETMQ, Go and C++ do,
 * in rotation; otherwise Java's JSON). One thread and epoll: it takes a tenth of a core, where a
 * generator in Python would be the bottleneck. It prints one line of key=value.
 * Exit code 3: the broker closed the connection. */

#include "loadgen.h"

enum { SEND = 10, SEND_V2 = 310, SEND_BATCH = 320, PULL = 11, MAX_OFFSET = 30 };
enum { FOUND = 0, PULL_NOT_FOUND = 19, PULL_RETRY = 20, PULL_MOVED = 21 };
enum { MAX_QUEUES = 256, RING = 1 << 20, BODY_AT = 88, SUSPEND_MS = 15000 };

static unsigned char body[FRAME_BYTES];
static int body_length;
static uint64_t sent_at[RING];
static uint32_t next_opaque;
static long offsets[MAX_QUEUES];
static int unanswered;
static bool counting;
static uint64_t messages, bytes;

/* Requests. */

static char id_base[32];
static uint32_t id_count;

static int request(int code, uint32_t opaque, const char *fields, const void *with, int length) {
  int header = sprintf((char *)frame + 8,
                       "{\"code\":%d,\"extFields\":{%s},\"flag\":0,\"language\":\"JAVA\","
                       "\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
                       code, fields, opaque);
  put32(frame, 4 + header + length);
  put32(frame + 4, header);
  memcpy(frame + 8 + header, with, length);
  return 8 + header + length;
}

/* A send as four clients write it; --forms gives them to the connections in turns. The Java client
 * writes SEND_MESSAGE_V2 with its fields by letter. Go and C++ write SEND_MESSAGE with its fields by
 * name: Go with `extFields` last, C++ signed, with bare numbers and a line feed at the end. */
enum form { JAVA_JSON, JAVA_BINARY, GO, CPP, FORMS };
enum { GROUP, TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES, QUEUE, SYS_FLAG, BORN, FLAG, PROPERTIES,
       RECONSUMED, UNIT_MODE, BATCH, FIELDS };

static const char *const LETTERS = "abcdefghijkm";
static const char *const NAMES[FIELDS] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch"};
static const char BY_NAME[FIELDS] = {BATCH, BORN, DEFAULT_TOPIC, DEFAULT_QUEUES, FLAG, GROUP,
                                     PROPERTIES, QUEUE, RECONSUMED, SYS_FLAG, TOPIC, UNIT_MODE};
static const char *const CPP_SIGNATURE =
    "\"AccessKey\":\"\",\"OnsChannel\":\"ALIYUN\",\"Signature\":\"WVMhgn6j3+FJatF6OUunZ4iA3rk=\",";
static const char *const TAGS[] = {"paid", "open", "cancelled", "refund", "in_transit"};

static int tell_properties(char *to) {
  uint32_t id = id_count++;
  if (!opt.vary) return sprintf(to, "UNIQ_KEY\001%s%08X\002WAIT\001true", id_base, id);
  return sprintf(to, "TAGS\001%s\002KEYS\001order-%u\002UNIQ_KEY\001%s%08X\002WAIT\001true\002"
                     "trace\001%08x",
                 TAGS[rand() % 5], (unsigned)rand() % 5000000, id_base, id, id * 2654435761u);
}

static char *json_text(char *to, const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 32) to += sprintf(to, "\\u%04x", *text);
    else *to++ = *text;
  return to;
}

static char *json_fields(char *to, enum form form, char values[][256]) {
  for (int i = 0; i < FIELDS; i++) {
    int field = form == JAVA_JSON ? i : BY_NAME[i];
    bool number = form == CPP && (field == DEFAULT_QUEUES || field == QUEUE ||
                                  field == SYS_FLAG || field == FLAG);
    const char *quote = number ? "" : "\"";
    if (form == JAVA_JSON) to += sprintf(to, "%s\"%c\":\"", i ? "," : "", LETTERS[field]);
    else to += sprintf(to, "%s\"%s\":%s", i ? "," : "", NAMES[field], quote);
    to = json_text(to, values[field]);
    to += sprintf(to, "%s", quote);
  }
  return to;
}

static int json_header(char *to, enum form form, int code, uint32_t opaque, char values[][256]) {
  char *at = to;
  if (form == GO) {
    at += sprintf(at, "{\"code\":%d,\"language\":\"GO\",\"version\":317,\"opaque\":%u,\"flag\":0,"
                      "\"remark\":\"\",\"extFields\":{", code, opaque);
    at = json_fields(at, form, values);
    return at + sprintf(at, "}}") - to;
  }
  at += sprintf(at, "{\"code\":%d,\"extFields\":{%s", code, form == CPP ? CPP_SIGNATURE : "");
  at = json_fields(at, form, values);
  if (form == CPP)
    at += sprintf(at, "},\"flag\":0,\"language\":\"CPP\",\"opaque\":%u,\"remark\":\"\","
                      "\"version\":63}\n", opaque);
  else
    at += sprintf(at, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
                      "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}", opaque);
  return at - to;
}

static int binary_header(unsigned char *to, int code, uint32_t opaque, char values[][256]) {
  unsigned char *at = to + 21;
  for (int field = 0; field < FIELDS; field++) {
    int length = strlen(values[field]);
    *at++ = 0;
    *at++ = 1;
    *at++ = LETTERS[field];
    put32(at, length);
    memcpy(at + 4, values[field], length);
    at += 4 + length;
  }
  memset(to, 0, 21);
  to[0] = code >> 8;
  to[1] = code;
  to[3] = 407 >> 8;
  to[4] = 407 & 255;
  put32(to + 5, opaque);
  put32(to + 17, at - to - 21);
  return at - to;
}

static int send_request(enum form form, uint32_t opaque, int queue, bool batch) {
  static char values[FIELDS][256] = {[GROUP] = "bench", [DEFAULT_TOPIC] = "TBW102",
                                     [SYS_FLAG] = "0", [FLAG] = "0", [RECONSUMED] = "0",
                                     [UNIT_MODE] = "false"};
  int code = batch ? SEND_BATCH : form == GO || form == CPP ? SEND : SEND_V2, header;
  int length = batch || !opt.vary ? body_length : opt.size / 4 + rand() % (opt.size * 3 / 2 + 1);
  if (opt.topics > 1) snprintf(values[TOPIC], 256, "%s_%d", opt.topic, rand() % opt.topics);
  else snprintf(values[TOPIC], 256, "%s", opt.topic);
  sprintf(values[DEFAULT_QUEUES], "%d", opt.queues);
  sprintf(values[QUEUE], "%d", queue);
  sprintf(values[BORN], "%lld", wall_ms());
  sprintf(values[BATCH], "%s", batch ? "true" : "false");
  values[PROPERTIES][0] = 0;
  if (!batch) tell_properties(values[PROPERTIES]);
  if (form == JAVA_BINARY) header = binary_header(frame + 8, code, opaque, values);
  else header = json_header((char *)frame + 8, form, code, opaque, values);
  put32(frame, 4 + header + length);
  put32(frame + 4, header | (form == JAVA_BINARY ? 1 << 24 : 0));
  memcpy(frame + 8 + header, body, length);
  return 8 + header + length;
}

static void ask_pull(struct connection *c, int queue, bool suspend) {
  char fields[1024];
  uint32_t opaque = (next_opaque++ << 8) | queue;
  snprintf(fields, sizeof fields,
           "\"commitOffset\":\"0\",\"consumerGroup\":\"bench_c\",\"expressionType\":\"TAG\","
           "\"maxMsgNums\":\"%d\",\"queueId\":\"%d\",\"queueOffset\":\"%ld\",\"subVersion\":\"0\","
           "\"subscription\":\"%s\",\"suspendTimeoutMillis\":\"%d\",\"sysFlag\":\"%d\","
           "\"topic\":\"%s\"",
           opt.max, queue, offsets[queue], opt.vary ? TAGS[0] : "*", suspend ? SUSPEND_MS : 0,
           suspend ? 6 : 4, opt.topic);
  sent_at[opaque & (RING - 1)] = now_ns();
  queue_frame(c, request(PULL, opaque, fields, "", 0));
}

static void fill_batch(void) {
  unsigned char *at = body;
  for (int i = 0; i < opt.batch; i++) {
    char text[96];
    int properties = sprintf(text, "UNIQ_KEY\001%s%08X\002WAIT\001true", id_base, id_count++);
    put32(at, 20 + opt.size + 2 + properties);
    memset(at + 4, 0, 12);
    put32(at + 16, opt.size);
    memset(at + 20, 'x', opt.size);
    at += 20 + opt.size;
    *at++ = properties >> 8;
    *at++ = properties;
    memcpy(at, text, properties);
    at += properties;
  }
  body_length = at - body;
}

/* Measuring: wait out the warm-up, count for the given time, print. */

static uint64_t begins, ends;
static double cpu_at_begin;

static void set_times(void) {
  begins = now_ns() + (uint64_t)(opt.warm * 1e9);
  ends = begins + (uint64_t)(opt.secs * 1e9);
}

static bool goes_on(void) {
  uint64_t t = now_ns();
  if (!counting && t >= begins) {
    counting = true;
    begins = t;
    ends = t + (uint64_t)(opt.secs * 1e9);
    cpu_at_begin = cpu_seconds();
  }
  return t < ends && !(opt.count && messages >= (uint64_t)opt.count);
}

static void report(void) {
  double secs = (now_ns() - begins) / 1e9, cpu = cpu_seconds() - cpu_at_begin;
  printf("mode=%s n=%llu secs=%.3f per_s=%.1f MB_s=%.1f p50_us=%.1f p99_us=%.1f p999_us=%.1f "
         "errs=%llu cpu_us_per=%.3f cpu_cores=%.3f\n",
         opt.mode, (unsigned long long)messages, secs, messages / secs, bytes / 1e6 / secs,
         quantile_us(.5), quantile_us(.99), quantile_us(.999), (unsigned long long)errors,
         messages ? cpu / messages * 1e6 : 0, cpu / secs);
}

/* send and batch */

static bool batches;

static void send_one(struct connection *c) {
  uint32_t opaque = next_opaque++ & 0x7fffffff;
  enum form form = opt.forms ? (c - connections) % FORMS : JAVA_JSON;
  int length = send_request(form, opaque, opaque % opt.queues, batches);
  sent_at[opaque & (RING - 1)] = now_ns();
  queue_frame(c, length);
}

static void on_sent(struct connection *c, const struct answer *a) {
  if (a->code != 0) {
    complain(a);
  } else if (counting) {
    note_latency(now_ns() - sent_at[a->opaque & (RING - 1)]);
    messages += batches ? opt.batch : 1;
    bytes += body_length; /* the mean, with --vary */
  }
  send_one(c);
}

static void mode_send(void) {
  if (batches) {
    fill_batch();
  } else {
    body_length = opt.size;
    for (int i = 0; i < 2 * body_length; i++) body[i] = 'a' + i % 26;
  }
  open_connections(opt.conns);
  set_times();
  for (int i = 0; i < opt.conns; i++) {
    for (int k = 0; k < opt.inflight; k++) send_one(&connections[i]);
    flush(&connections[i]);
  }
  while (goes_on()) turn(on_sent, 100);
  report();
}

/* pull */

static int each_record(const struct answer *a, void (*look)(const unsigned char *)) {
  int count = 0;
  for (int at = 0; at + 4 <= a->body_length; count++) {
    uint32_t length = get32(a->body + at);
    if (length < BODY_AT || at + (int64_t)length > a->body_length) {
      fprintf(stderr, "an answer holds a record of %u bytes\n", length);
      exit(4);
    }
    if (look) look(a->body + at);
    at += length;
  }
  return count;
}

static void on_pulled(struct connection *c, const struct answer *a) {
  int queue = a->opaque & (MAX_QUEUES - 1);
  if (a->code == FOUND) {
    int count = each_record(a, NULL);
    offsets[queue] =
        number_after(a->header, a->header_length, "\"nextBeginOffset\":", offsets[queue] + count);
    if (counting) {
      note_latency(now_ns() - sent_at[a->opaque & (RING - 1)]);
      messages += count;
      bytes += a->body_length;
    }
  } else {
    if (a->code < PULL_NOT_FOUND || a->code > PULL_MOVED) complain(a);
    const char *next = a->code == PULL_RETRY ? "\"nextBeginOffset\":" : "\"none\":";
    offsets[queue] = number_after(a->header, a->header_length, next, 0);
  }
  ask_pull(c, queue, false);
}

static void mode_pull(void) {
  open_connections(opt.conns);
  set_times();
  for (int queue = 0; queue < opt.queues; queue++) {
    struct connection *c = &connections[queue % opt.conns];
    ask_pull(c, queue, false);
    flush(c);
  }
  while (goes_on()) turn(on_pulled, 100);
  report();
}

/* push: one connection sends, the other one's pulls wait; a body begins with the time it left */

static void on_max_offset(struct connection *c, const struct answer *a) {
  (void)c;
  offsets[a->opaque] = number_after(a->header, a->header_length, "\"offset\":", 0);
  unanswered--;
}

static void note_delivery(const unsigned char *record) {
  uint64_t left;
  memcpy(&left, record + BODY_AT, sizeof left);
  note_latency(now_ns() - left);
  messages++;
}

static void on_delivered(struct connection *c, const struct answer *a) {
  if (c == &connections[0]) {
    if (a->code != 0) complain(a);
    return;
  }
  int queue = a->opaque & (MAX_QUEUES - 1);
  if (a->code == FOUND)
    offsets[queue] += each_record(a, counting ? note_delivery : NULL);
  else if (a->code == PULL_MOVED)
    offsets[queue] =
        number_after(a->header, a->header_length, "\"nextBeginOffset\":", offsets[queue]);
  else if (a->code != PULL_NOT_FOUND && a->code != PULL_RETRY)
    complain(a);
  ask_pull(c, queue, true);
}

static void find_ends(struct connection *c) {
  for (int queue = 0; queue < opt.queues; queue++) {
    char fields[256];
    snprintf(fields, sizeof fields, "\"queueId\":\"%d\",\"topic\":\"%s\"", queue, opt.topic);
    queue_frame(c, request(MAX_OFFSET, queue, fields, "", 0));
  }
  unanswered = opt.queues;
  flush(c);
  while (unanswered > 0) turn(on_max_offset, 1000);
}

static void mode_push(void) {
  body_length = opt.size < 8 ? 8 : opt.size;
  memset(body, 'x', body_length);
  open_connections(2);
  find_ends(&connections[1]);
  for (int queue = 0; queue < opt.queues; queue++) ask_pull(&connections[1], queue, true);
  flush(&connections[1]);
  set_times();
  uint64_t due = now_ns() + 100000000;
  while (goes_on()) {
    uint64_t t = now_ns();
    if (t >= due) {
      memcpy(body, &t, sizeof t);
      queue_frame(&connections[0], send_request(JAVA_JSON, next_opaque++, id_count % opt.queues,
                                                false));
      flush(&connections[0]);
      due += (uint64_t)(1e9 / opt.rate);
    }
    t = now_ns();
    turn(on_delivered, due > t ? (int)((due - t) / 1000000) : 0);
  }
  report();
}

static void read_options(int count, char **words) {
  for (int i = 2; i + 1 < count; i += 2) {
    const char *name = words[i], *value = words[i + 1];
    if (!strcmp(name, "--addr")) opt.addr = value;
    else if (!strcmp(name, "--topic")) opt.topic = value;
    else if (!strcmp(name, "--conns")) opt.conns = atoi(value);
    else if (!strcmp(name, "--inflight")) opt.inflight = atoi(value);
    else if (!strcmp(name, "--size")) opt.size = atoi(value);
    else if (!strcmp(name, "--queues")) opt.queues = atoi(value);
    else if (!strcmp(name, "--batch")) opt.batch = atoi(value);
    else if (!strcmp(name, "--max")) opt.max = atoi(value);
    else if (!strcmp(name, "--secs")) opt.secs = atof(value);
    else if (!strcmp(name, "--warm")) opt.warm = atof(value);
    else if (!strcmp(name, "--count")) opt.count = atol(value);
    else if (!strcmp(name, "--rate")) opt.rate = atof(value);
    else if (!strcmp(name, "--topics")) opt.topics = atoi(value);
    else if (!strcmp(name, "--vary")) opt.vary = atoi(value);
    else if (!strcmp(name, "--forms")) opt.forms = atoi(value);
    else if (!strcmp(name, "--pid") && opt.pid_count < MAX_PIDS)
      opt.pids[opt.pid_count++] = atoi(value);
    else {
      fprintf(stderr, "unknown option %s\n", name);
      exit(2);
    }
  }
  if (opt.conns < 1 || opt.conns > MAX_CONNECTIONS || opt.queues < 1 || opt.topics < 1 ||
      (opt.queues > MAX_QUEUES && (!strcmp(opt.mode, "pull") || !strcmp(opt.mode, "push"))) ||
      (int64_t)(opt.size + 128) * opt.batch > FRAME_BYTES - 4096) {
    fprintf(stderr, "too many connections or queues, or too large messages\n");
    exit(2);
  }
}

int main(int count, char **words) {
  if (count < 2) {
    fprintf(stderr, "loadgen send|batch|pull|push; see the head of loadgen.c\n");
    return 2;
  }
  opt.mode = words[1];
  read_options(count, words);
  snprintf(id_base, sizeof id_base, "7F000001%04X18B4AAC2%08X", getpid() & 0xffff,
           (unsigned)time(NULL));
  batches = !strcmp(opt.mode, "batch");
  if (batches || !strcmp(opt.mode, "send")) mode_send();
  else if (!strcmp(opt.mode, "pull")) mode_pull();
  else if (!strcmp(opt.mode, "push")) mode_push();
  else return 2;
  return 0;
}
