// A member of a consumer group with a client for Node.js: prints what it owns and what it reads, as
// JSON lines.
//
//   SESSION_MS=6000 node member.mjs kafkajs|platformatic ADDRESS GROUP TOPIC
//
// Lines: {"owned": [partition, ...]} after each assignment, {"at": [partition, offset]} for each
// record. SIGTERM: commit, leave and end.

const [client, address, group, topic] = process.argv.slice(2)
const sessionTimeout = Number(process.env.SESSION_MS)
const brokers = address.split(',')

function say(line) {
  console.log(JSON.stringify(line))
}

function sayOwned(partitions) {
  say({ owned: [...partitions].sort((a, b) => a - b) })
}

async function kafkajs() {
  const { Kafka, logLevel } = (await import('kafkajs')).default
  const kafka = new Kafka({
    clientId: 'member',
    brokers,
    logLevel: logLevel.NOTHING,
    retry: { retries: 20, initialRetryTime: 100, maxRetryTime: 1000 }
  })
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout,
    heartbeatInterval: 500,
    metadataMaxAge: 5000
  })
  const { GROUP_JOIN, REBALANCING, CRASH } = consumer.events
  consumer.on(GROUP_JOIN, ({ payload }) => {
    // It begins again at the committed offsets, whatever it had.
    sayOwned([])
    sayOwned(payload.memberAssignment[topic] ?? [])
  })
  consumer.on(REBALANCING, () => sayOwned([]))
  consumer.on(CRASH, ({ payload }) => say({ error: String(payload.error) }))
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 500,
    eachMessage: async ({ partition, message }) => say({ at: [partition, Number(message.offset)] })
  })
  return () => consumer.disconnect()
}

async function platformatic() {
  const { Consumer } = await import('@platformatic/kafka')
  let consumer, stream

  async function open() {
    const own = new Consumer({
      clientId: 'member',
      groupId: group,
      bootstrapBrokers: brokers,
      sessionTimeout,
      rebalanceTimeout: 60000,
      heartbeatInterval: 500,
      retries: 3,
      retryDelay: 250
    })
    consumer = own
    own.on('consumer:group:join', ({ assignments }) =>
      sayOwned((assignments ?? []).filter((each) => each.topic === topic).flatMap((each) => each.partitions))
    )
    own.on('consumer:group:rebalance', () => sayOwned([]))
    // It asks once which node coordinates its group, and never again: another consumer has to.
    own.on('consumer:heartbeat:error', () => reopen(own))
    const reading = await own.consume({
      topics: [topic],
      mode: 'committed',
      fallbackMode: 'earliest',
      autocommit: 500,
      maxWaitTime: 500
    })
    stream = reading
    reading.on('error', () => reopen(own))
    reading.on('data', (message) => {
      if (own === consumer) say({ at: [message.partition, Number(message.offset)] })
    })
  }

  async function reopen(failed) {
    if (failed !== consumer) return
    consumer = undefined
    sayOwned([])
    failed.close(true, () => {})
    while (consumer === undefined) {
      try {
        await open()
      } catch (error) {
        consumer?.close(true, () => {})
        consumer = undefined
        await new Promise((resolve) => setTimeout(resolve, 500))
      }
    }
  }

  await open()
  return async () => {
    await stream.close()
    await consumer.close(true)
  }
}

const close = await { kafkajs, platformatic }[client]()
process.on('SIGTERM', async () => {
  await close()
  say({ ended: true })
  process.exit(0)
})
