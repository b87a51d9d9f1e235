// Asks its client, in all ways there are.

const events = []

export function* ask({ item }) {
  return yield item
}
export async function* ask_async({ item }) {
  const answer = yield item
  return { answer }
}
export function* careful({ item }) {
  try {
    yield item
  } catch (err) {
    const again = yield { ask: 'again' }
    return `${err.message}, then ${again.text}`
  }
}
export async function* careful_async({ item }) {
  try {
    yield item
  } catch (err) {
    const again = yield { ask: 'again' }
    return `${err.message}, then ${again.text}`
  }
}
export function* twice() {
  const first = yield { ask: 'first' }
  const nothing = yield { progress: 1 }
  const second = yield { ask: 'second', params: undefined }
  return [first, nothing ?? null, second]
}
export async function* twice_async() {
  const first = yield { ask: 'first' }
  const nothing = yield { log: 'between' }
  const second = yield { ask: 'second' }
  return [first, nothing ?? null, second]
}
export function* wait() {
  try {
    yield { ask: 'roots/list' }
  } finally {
    events.push('returned')
  }
}
export async function* wait_async() {
  try {
    yield { ask: 'roots/list' }
  } finally {
    await null
    events.push('returned async')
  }
}
export function* big() {
  yield { ask: 'big', params: { n: 1n } }
}
export function* stray() {
  setTimeout(() => { throw new Error('in a timer') })
  try {
    yield { ask: 'roots/list' }
  } finally {
    events.push('stray returned')
  }
}
export const seen = () => [...events].sort()
