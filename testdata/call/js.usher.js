export async function f() {
  console.log('printed')
  await null
  new URL('nope') // Node's own code throws
}
