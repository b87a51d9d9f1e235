// Types of every kind. For the test.
import { readFileSync } from 'node:fs'

/** Where someone lives. */
interface Address {
  street: string // with the number
  city?: string
}

/** A tree. */
interface Node {
  value: number
  left?: Node
  more?: Node[]
  peer?: Couple
}
type Couple = { a?: Node; b?: Node }
type Kind = 'a' | 'b'
const re = /["'`{]/g, half = 3 / 2 / 1

/**
 * Describe takes all of it.
 * @readonly
 */
export async function describe(params: {
  email: string
  tags?: string[]
  kind: 'a' | 'b' | null; level: Kind
  /** How old. */
  age: number | null
  when: Date
  any: any; unknown: unknown
  map: Record<string, number>
  list: Array<{ x: number }>
  u: string | number
  v: string | string[]
  w?: boolean | undefined
  o: string | undefined
  b: true | false
  home: Address // where
  work?: Address | null
  node: Node
  f: (a: string) => void
  g(): void
  t: [string, number]
  tl: `a${string}b`
  idx: { [k: string]: boolean }
  'odd-key': 1 | 2 | -3
  readonly ro: readonly string[]
  cond: string extends 'a' ? number : boolean
  part: Partial<Address>
  inter: Address & { zip: string }
  brand: string & { __b: 1 }
  _webhook?: { headers: Record<string, string> }
}): Promise<{ ok: boolean }> {
  return { ok: true }
}
export const arrow = async <T,>({ a, b = [], c: d }: { a: string; b: string[]; c: Kind }): Promise<void> => {}
/** Grow. */
export function grow(n: Node) { return n }
/** An overload says what callers see. */
export function pick(p: { one: string }): string
export function pick(p: { one: string, two?: number }) { return p.one }
export const wrapped = ((f) => f)((p: { a: string }) => p)
// Parameters of a type that is not declared here.
export function imported({ a, b = 1 }: import('./other.ts').Elsewhere) { return [a, b] }
export function generic<T extends { id: string }>(this: void, p: Box<T>) { return p }
interface Box<T> { item: T }
interface Parcel extends Address { weight: number }
export function ship(p: Readonly<Parcel>) { return p }
