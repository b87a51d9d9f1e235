export async function f() {
  console.log('printed')
  await null
  undefined.x
}
