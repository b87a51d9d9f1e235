// What a method can return, throw and say, for the tests of calls.

import { execFileSync } from 'node:child_process'
import { readFileSync, writeSync } from 'node:fs'
import { stdout as out } from 'node:process'

console.log('printed while loading')

export const echo = p => p
export const keys = p => ({ own: Object.keys(p), polluted: {}.polluted ?? 'no', proto: Object.getPrototypeOf(p) === Object.prototype })
export const nothing = () => {}
export const object = () => ({ a: 1, gone: undefined, when: new Date(0) })
export const throws = () => { throw new RangeError('no <way>') }
export const rejects = async () => { await null; throw new Error('never') }
export const throwsText = () => { throw 'just text' }
export const throwsObject = () => { throw { code: 7 } }
export const throwsEmpty = () => { throw new TypeError() }
export const throwsHostile = () => { throw { get message() { throw new Error('nested') }, toJSON() { throw 1 }, toString() { throw 2 } } }
export const nan = () => ({ mean: 0 / 0 })
export const map = () => ({ m: new Map([[1, 2]]) })
export const big = () => ({ n: 1n })
export const func = () => ({ f() {} })
export const bareFunc = () => () => 1
export const cycle = () => { const o = {}; o.o = o; return o }
export const hostile = () => ({ toJSON() { throw new Error('not for you') } })
export const largeThenExit = ({ size }) => { setTimeout(() => process.exit(0)); return 'é'.repeat(size) }
export const print = () => {
  console.log('by console.log')
  console.error('by console.error')
  process.stdout.write('by process.stdout\n')
  out.write('by an import of stdout\n')
  writeSync(1, 'by its number, without an end of line')
  execFileSync('node', ['-e', 'console.log("by a child")'], { stdio: 'inherit' })
  return 'printed'
}
export const read = () => {
  let child = ''
  child = execFileSync('node', ['-e', 'process.stdin.on("data", d => console.log("got", d)).on("end", () => console.log("end"))'], { stdio: ['inherit', 'pipe', 'inherit'] })
  return { own: readFileSync(0, 'utf8'), child: String(child).trim() }
}
export async function stdin() {
  let text = ''
  for await (const chunk of process.stdin) text += chunk
  return 'read ' + JSON.stringify(text)
}
export const argv = () => process.argv.length

let count = 0
export const next = () => ++count
export const sleep = ({ ms }) => new Promise(done => setTimeout(() => done('slept'), ms))

// Errors that nobody catches: of a call, and of nobody.
export const timer = () => new Promise(() => setTimeout(() => { throw new Error('in a timer') }, 1))
export const forgotten = () => new Promise(() => { Promise.reject(new Error('forgotten')) })
export const later = () => { setTimeout(() => { throw new Error('after the answer') }, 1); return 'answered' }

export function* steps({ n }) {
  for (let i = 1; i <= n; i++) yield { progress: i, total: n, message: 'step ' + i }
  yield { progress: NaN }
  return { n }
}
export async function* logs() {
  yield { log: 'plain' }
  yield { log: { deep: [1] }, level: 'warning' }
  yield { log: 1n }
  yield { progress: 2 }
}
export function* unknown() {
  const { action } = yield { aks: 'm', params: {} }
  return action
}
export async function* unknownValue() { yield 1 }
export const caused = () => { throw new Error('outer', { cause: new RangeError('inner') }) }
export async function* fails() {
  yield { progress: 1 }
  throw new Error('half way')
}

let ended = 'not'
export async function* endless() {
  ended = 'running'
  try {
    for (let i = 0; ; i++) yield { progress: i }
  } finally {
    ended = 'returned'
  }
}
export const howEnded = () => ended
