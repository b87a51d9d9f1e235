// Takes parameters by name.
const KINDS = [
  'a',
  'b,c',
] as const
type Kind = typeof KINDS[number]
interface Base { id: string; n: number | null; when?: Date }

/** Finds it. */
export function find(name: string, kind: Kind = 'a', { deep = true }: { deep?: boolean } = {}) { return name }
/**
 * @param id the id
 * @param options how
 * @param more others
 */
export const get = (id: Base['id'], { a, b = 3 }: { a: string; b?: number }, ...more: number[]) => id
export const parse = (amount: number | string | undefined) => amount
export const put = (base: Base, f: () => void, kinds: typeof KINDS[number][] | null) => base
export const one = ({ b = 3, s = 'x', n = null }: { b?: number; s?: string; n?: number | null }) => b
