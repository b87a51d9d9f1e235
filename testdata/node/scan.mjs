// Reads pieces and scrambled copies of the files here with the shim's scanner,
// whose source is put before this text.
function read(text) {
  const s = new Source(text)
  s.read()
  for (const [name, e] of [...s.local, ...s.exported]) {
    s.tool(name, s.resolve(e))
    for (const [inner, m] of s.resolve(e).members ?? []) s.tool(inner, s.resolve(m))
  }
}
const marks = [...'{}()[]<>\'"/*=:;,|&$#@\\`']
let seed = 7
const random = n => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % n
for (const file of fs.readdirSync('.').filter(f => /[jt]s$/.test(f))) {
  const text = fs.readFileSync(file, 'utf8')
  for (let i = 0; i < process.env.ROUNDS; i++) {
    const at = random(text.length)
    let odd = [text.slice(0, at), text.slice(at)][i % 2]
    for (let k = 0; k < 3; k++) {
      const before = odd.slice(0, random(odd.length + 1))
      odd = before + marks[random(marks.length)] + odd.slice(random(odd.length + 1))
    }
    try {
      read(odd)
    } catch (err) {
      log(file + ': ' + err.stack + '\n' + odd.slice(0, 2000))
      process.exit(1)
    }
  }
}
process.exit(0)
