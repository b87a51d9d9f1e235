type Tree = { name: string; more?: Tree[] }
export function f(p: {
  bed?: { rows: number; kind?: 'a' | 'b'; at?: { x: number }[] }
  both?: string | number
  either?: string | string[]
  maybe?: string | null
  counts?: Record<string, number>
  tree?: Tree
}) { return p }
export function g({ n = 5, deep = {} }: { n?: number; deep?: { m?: number } }) { return { n, deep } }
