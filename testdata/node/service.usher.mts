#!/usr/bin/env node
'use strict'
/* eslint-disable */

type Amount = { n?: number /* how much */; unit: 'kg' | 'lb' }

/** Adds up what is brought. It forgets nothing. */
export default class Service {
  total = 0
  log = [1, 2].map((n) => ({ n }))
  handler = function (x: number) { return x }
  #secret() { return this.total }
  private inner(x: { a: string }) { return x }
  _hidden() {}
  static make() { return new Service() }
  get size() { return this.total }

  /** Adds. */
  async add({ n = 1 }: Amount = { unit: 'kg' }): Promise<{ total: number }> {
    this.total += n
    return { total: this.total }
  }
  // Yields each.
  async *each(p: { upTo: number }): AsyncGenerator<number, { done: boolean }> {
    for (let i = 0; i < p.upTo; i++) yield i
    return { done: true }
  }

  async() { return 'a name that is a keyword elsewhere' }
}
