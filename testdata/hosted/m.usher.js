// Is hosted. Here.
let count = 0
/**
 * Adds.
 * @param {integer} [by=1] how much
 */
export function add({ by = 1 }) { return { count: count += by } }
export function* walk({ steps }) {
  for (let n = 0; n < steps; n++) {
    yield { progress: n + 1, total: steps }
    yield { log: 'step ' + n }
  }
  return 'there'
}
export const crash = () => process.exit(3)
