// Counts the results of a run of the conformance suite with a requirement set. It counts
// only the scenarios that the set names; the set does not change any more.
//
//   node tally.mjs OUT REVISION
//
// It prints "SCENARIOS CHECKS WARNINGS" to stdout, where the first two are the numbers of
// those that passed, and failures and warnings to stderr.

import { readFileSync, readdirSync } from 'node:fs'

const [out, revision] = process.argv.slice(2)
const set = new URL(`node_modules/@modelcontextprotocol/conformance/requirements/${revision}.yaml`, import.meta.url)
const scored = new Set(/^server:\n((?:  - .*\n)+)/m.exec(readFileSync(set, 'utf8'))[1].match(/[^\s-]\S*/g))

let scenarios = 0, passed = 0, warnings = 0
for (const dir of readdirSync(out)) {
  const name = /^server-(.+)-\d{4}-\d\d-\d\dT/.exec(dir)?.[1]
  if (!scored.delete(name)) continue
  const checks = JSON.parse(readFileSync(`${out}/${dir}/checks.json`))
  const having = status => checks.filter(check => check.status === status)
  passed += having('SUCCESS').length
  warnings += having('WARNING').length
  if (having('FAILURE').length === 0) scenarios++
  for (const { status, id, errorMessage = '' } of [...having('FAILURE'), ...having('WARNING')]) {
    console.error(`    ${status} ${name} ${id}: ${errorMessage.split('\n')[0].slice(0, 200)}`)
  }
}
for (const name of scored) console.error(`    FAILURE ${name} did not end`)
console.log(scenarios, passed, warnings)
