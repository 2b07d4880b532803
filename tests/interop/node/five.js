// Five producers and consumers side by side, each with a topic that exists; prints what is wrong.
'use strict';
const { Consumer, Producer, Message } = require('ali-ons');

const WAIT_MS = 60000;
const MESSAGES = 3;
const silent = { info() {}, warn() {}, error() {}, debug() {} };
const base = { httpclient: {}, nameSrv: process.argv[2], logger: silent, accessKeyId: 'a', accessKeySecret: 'b' };

async function scenario(name, { filter = '*', options = {}, delayLevel = 0, failOnce = false }) {
  const producer = new Producer({ ...base, producerGroup: `p-${name}` });
  producer.on('error', error => console.error(name, error));
  await producer.ready();
  const missing = new Set();
  for (let i = 0; i < MESSAGES; i++) {
    const message = new Message(`node-${name}`, 'A', `${name}-${i}`);
    if (delayLevel) message.delayTimeLevel = delayLevel;
    const { sendStatus } = await producer.send(message);
    if (sendStatus !== 'SEND_OK') throw new Error(`${name}: ${sendStatus}`);
    missing.add(`${name}-${i}`);
  }
  const consumer = new Consumer({
    ...base, consumerGroup: `g-${name}`, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...options,
  });
  consumer.on('error', error => console.error(name, error));
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${name} misses ${[...missing]}`)), WAIT_MS);
    let fails = failOnce;
    consumer.subscribe(`node-${name}`, filter, async message => {
      if (fails) {
        fails = false;
        throw new Error('once');
      }
      missing.delete(message.body.toString());
      if (!missing.size) resolve();
    });
  });
  console.log(`${name} right`);
}

Promise.all([
  scenario('plain', {}),
  scenario('tags', { filter: 'A || B' }),
  scenario('broadcast', { options: { isBroadcast: true } }),
  scenario('delayed', { delayLevel: 2 }),
  scenario('retry', { failOnce: true }),
]).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
