// The Node.js runtime of usher: it loads one NAME.usher.js, .mjs, .ts or .mts and
// serves its functions as MCP tools over stdin and stdout, a JSON-RPC message a
// line. usher has checked the arguments of a call, and makes the tool's result of
// what a method returns. Top to bottom: the pipes, the protocol, calls, loading
// the file, which methods it has, and what its source says of them: comments and
// types, read by a scanner that never refuses a file.

import { AsyncLocalStorage } from 'node:async_hooks'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import module from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { Readable } from 'node:stream'
import { pathToFileURL } from 'node:url'
import { inspect } from 'node:util'

const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency']

const { writeSync } = fs // the module may replace it
const { stringify } = JSON
const file = path.resolve(process.argv[2])
const base = path.basename(file)
const name = base.split('.usher')[0]
const text = String(process.argv[3] ? readInput(Number(process.argv[3])) : fs.readFileSync(file))
process.argv.splice(2) // usher's arguments are none of the module's

const pipes = takeStdio()

// ---- The pipes

// takeStdio takes the protocol's pipes away from the module: what it or a child
// of it prints goes to the log, by whatever way, and reading finds nothing. Node
// can't duplicate descriptors, but Unix can open them by name.
function takeStdio() {
  try {
    if (fs.fstatSync(0).isFIFO() && fs.fstatSync(1).isFIFO()) {
      const [input, output] = [fs.openSync('/dev/fd/0', 'r'), fs.openSync('/dev/fd/1', 'a')]
      fs.closeSync(fs.openSync('/dev/fd/2', 'a')) // to see that it can be
      fs.closeSync(0)
      fs.openSync('/dev/null', 'r') // the lowest free number: 0
      fs.closeSync(1)
      fs.openSync('/dev/fd/2', 'a')
      return { input: new net.Socket({ fd: input, writable: false }), output }
    }
  } catch {} // not on this system; what follows is nearly as good
  const own = { input: process.stdin, output: 1 }
  Object.defineProperty(process, 'stdin', { value: Readable.from([]) })
  Object.defineProperty(process, 'stdout', { value: process.stderr })
  module.syncBuiltinESMExports()
  return own
}

// readInput reads what stdin begins with: the module's text as usher has read it.
// The file may hold another one by now, which must not run.
function readInput(size) {
  const bytes = Buffer.alloc(size)
  for (let at = 0; at < size;) at += fs.readSync(0, bytes, at, size - at) || size
  return bytes
}

// log writes to stderr, which is usher's log.
function log(text) { process.stderr.write(text + '\n') }

// write sends one line, whole before it returns: the module may end the process
// at any time. The newline before it ends what the module has left unfinished
// where it could not be kept from stdout.
function write(line) {
  const bytes = Buffer.from(pipes.output === 1 ? `\n${line}\n` : line + '\n')
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(pipes.output, bytes, at)
    } catch (err) {
      if (err.code !== 'EAGAIN') process.exit(0) // nobody reads any more
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2)
    }
  }
}

function send(message) { write(stringify({ jsonrpc: '2.0', ...message })) }

// ---- The protocol

const calls = new Map() // by the request's id as JSON
const asks = new Map() // what takes the answer, by the id of a request to the client
let asked = 0 // numbers those
const current = new AsyncLocalStorage() // the call that code runs for
let methods = null // by name; null while the file is loading
let about = ''

// An error that nobody catches would end the process, and with it the calls of
// others and the module's state. So it is logged, and fails the call in which it
// came up, which might wait for ever otherwise.
function stray(err) {
  log(`uncaught: ${shown(err)}`)
  current.getStore()?.settle(failure(messageOf(err)))
}
process.on('uncaughtException', stray)
process.on('unhandledRejection', stray)

let parts = [] // of a line that is not complete
const waiting = [] // lines that came while the file was loading
// hangUp ends the process: nobody is left to answer. What came before the end is
// still looked at, for who pipes a few lines in by hand.
async function hangUp() {
  await loading
  setImmediate(() => process.exit(0))
}

function receive(line) {
  if (!methods) return waiting.push(line)
  const m = JSON.parse(line)
  if (m.method === 'notifications/cancelled') {
    calls.get(m.params.requestId)?.end(true)
  } else if (m.method === undefined) {
    asks.get(m.id)?.(m)
  } else if (m.method === 'tools/call' && methods.has(m.params.name)) {
    const call = new Call(m)
    current.run(call, () => call.run(methods.get(m.params.name), m.params.arguments ?? {}))
  } else if (m.id !== undefined) { // else a notification that says nothing to us
    const result = reply(m)
    send(result ? { id: m.id, result } : { id: m.id, error: { code: -32601, message: `unknown method or tool in ${m.method}` } })
  }
}

function reply({ method, params }) {
  if (method === 'tools/list') return { tools: [...methods.values()].map(m => m.tool) }
  if (method === 'ping' || method === 'logging/setLevel') return {} // usher sorts out what clients want to hear
  return method === 'initialize' && {
    protocolVersion: params.protocolVersion,
    capabilities: { tools: {}, logging: {} },
    serverInfo: { name, version: '1' },
    instructions: about.replace(/^\s*@.*$/gm, ''), // usher takes the first sentence
  }
}

// ---- Calls

// A Call is one tools/call under way. Once it has been answered nothing more is
// sent for it; once it was cancelled, only that it has ended, as usher counts what
// runs.
class Call {
  ended = false

  constructor({ id, params }) {
    Object.assign(this, { id, token: params._meta?.progressToken })
    calls.set(id, this)
  }

  async run(method, args) {
    try {
      let value = await Reflect.apply(method.run, method.holder, [args])
      if (/^\[object (Async)?Generator\]$/.test(Object.prototype.toString.call(value))) value = await this.drive(value)
      if (!this.ended) this.settle(result(value)) // not made for nobody
    } catch (err) {
      log(`${method.tool.name}: ${shown(err)}`)
      this.settle(failure(messageOf(err)))
    } finally {
      if (calls.delete(this.id) && this.cancelled) send({ id: this.id, result: {} })
    }
  }

  // end ends the call, and the wait for an answer of the client.
  end(cancelled) {
    Object.assign(this, { ended: true, cancelled })
    this.stopAsking?.()
  }

  // settle answers, once; result is JSON.
  settle(result) {
    if (this.ended) return
    this.end()
    write(`{"jsonrpc":"2.0","id":${stringify(this.id)},"result":${result}}`)
  }

  // drive runs a generator to its end: what it yields is progress, a log
  // message, a request to the client, whose answer it gets back, or else its
  // result, should it return none.
  async drive(steps) {
    let resume = () => steps.next()
    for (let last; ;) {
      const { done, value } = await resume()
      if (done) return value === undefined ? last : value
      // A generator that never waits for anything would keep a cancellation,
      // and all other calls, from being seen.
      await new Promise(setImmediate)
      if (this.ended) return steps.return()
      resume = () => steps.next()
      if (hasOnly(value, 'ask', ['params'])) {
        resume = await this.ask(value).then(answer => () => steps.next(answer), err => () => steps.throw(err))
        if (this.ended) return steps.return()
      } else if (hasOnly(value, 'progress', ['total', 'message'])) this.progress(value)
      else if (hasOnly(value, 'log', ['level'])) this.message(value)
      else last = value
    }
  }

  // ask sends the client a request and waits for the answer, or for the end of
  // the call. Its _meta tells usher which call, and so which client, it is of.
  async ask({ ask: method, params = {} }) {
    const id = `ask-${++asked}`
    try {
      params = JSON.parse(toJSON(params))
      if (kind(params) !== 'object') throw new TypeError(`it is ${kind(params)}`)
      params._meta = { ...params._meta, 'usher/call': this.id }
    } catch (err) {
      throw new TypeError(`ask: params must be an object that can be written as JSON: ${messageOf(err)}`)
    }
    const answer = new Promise(resolve => {
      asks.set(id, resolve)
      this.stopAsking = resolve
    }).finally(() => asks.delete(id))
    send({ id, method: String(method), params })
    const { error, result } = await answer ?? {}
    if (this.ended) return
    if (error) throw new Error(error.message)
    return result
  }

  progress({ progress, total, message }) {
    if (this.token === undefined || !Number.isFinite(progress)) return
    total = Number.isFinite(total) ? total : undefined
    send({ method: 'notifications/progress', params: { progressToken: this.token, progress, total, message: message && String(message) } })
  }

  message({ log: data, level }) {
    try {
      data = JSON.parse(toJSON(data) ?? 'null')
    } catch {
      data = inspect(data)
    }
    send({ method: 'notifications/message', params: { level: LEVELS.includes(level) ? level : 'info', logger: name, data, _meta: { 'usher/call': this.id } } })
  }
}

// hasOnly tells an object with this key, maybe with those others, and no more.
function hasOnly(value, key, others) {
  return kind(value) === 'object' && Object.hasOwn(value, key) &&
    Object.keys(value).every(k => k === key || others.includes(k))
}

// ---- Results; as JSON text, so that a large one is written out once

function failure(message) { return stringify({ content: [{ type: 'text', text: message }], isError: true }) }

// result is what answers a call that returned a value: usher makes the tool
// result of it.
function result(value) {
  try {
    return `{"_meta":{"usher/value":${toJSON(value) ?? 'null'}}}`
  } catch (err) {
    const why = /circular/.test(err.message) ? 'it contains itself' : err.message
    return failure(`the result can't be written as JSON: ${why}`)
  }
}

// toJSON is JSON.stringify that refuses what that would silently change.
function toJSON(value) {
  return stringify(value, (key, v) => {
    const what = typeof v === 'number' && !Number.isFinite(v) ? String(v)
      : typeof v === 'bigint' || typeof v === 'function' || typeof v === 'symbol' ? `a ${typeof v}`
      : v instanceof Map || v instanceof Set ? `a ${v.constructor.name}` : ''
    if (what) throw new TypeError(key === '' ? `it is ${what}` : `${stringify(key)} is ${what}`)
    return v
  })
}

// messageOf is what a thrown value says, without a stack. Anything can be thrown.
function messageOf(err) {
  try {
    const text = typeof err === 'string' ? err : typeof err?.message === 'string' ? err.message || err.name : toJSON(err) ?? String(err)
    return String(text || 'the method failed without a message')
  } catch {
    return 'the method failed with something that has no text'
  }
}

function shown(err) {
  try {
    return String(err?.stack ?? inspect(err))
  } catch {
    return messageOf(err)
  }
}

function kind(v) { return v === null ? 'null' : Array.isArray(v) ? 'array' : typeof v }

// ---- Loading the file

// load runs the file and returns its methods by name.
async function load() {
  const typed = /ts$/.test(base)
  if (!module.register) return refuse(`usher's modules need Node.js 20.6 or newer`)
  const strips = process.features.typescript // false, or how Node itself does it
  if (typed && !strips && !module.stripTypeScriptTypes) return refuse('TypeScript needs Node.js 22.13 or newer')

  const source = new Source(text)
  safely(() => source.read())
  const type = /\.m[jt]s$/.test(base) ? 'module' : packageType(path.dirname(file))
  const isModule = type === 'module' || type !== 'commonjs' && source.isModule
  const code = typed ? module.stripTypeScriptTypes(text, { mode: strips || 'strip', sourceUrl: file }) : text
  const loaded = await (isModule ? loadModule : loadCommon)(code, typed && !strips)
  about = source.about
  const found = new Map()
  for (const m of findMethods(loaded, isModule, source)) {
    if (!found.has(m.tool.name)) found.set(m.tool.name, m)
  }
  if (found.size === 0) log(`${base} exports no functions, so it has no methods`)
  return found
}

// safely is what f returns. A source too odd to be read, nested without end say,
// costs its methods their documentation, and nothing else.
function safely(f) {
  try {
    return f()
  } catch (err) {
    log(`reading ${base}: ${messageOf(err)}`)
  }
}

// refuse ends the process with one line for the user.
function refuse(need) {
  log(`${base}: ${need}; this is ${process.version}`)
  process.exit(1)
}

// packageType is the type of the package.json that Node would go by.
function packageType(dir) {
  for (; ; dir = path.dirname(dir)) {
    try {
      return JSON.parse(fs.readFileSync(path.join(dir, 'package.json'), 'utf8')).type
    } catch (err) {
      if (err.code !== 'ENOENT' || dir === path.dirname(dir)) return undefined
    }
  }
}

// loadModule imports the file with this code as its own, whatever it holds. Where
// Node strips no types, the files that it imports need help too.
function loadModule(code, strip) {
  const given = { url: pathToFileURL(file).href, code, strip }
  if (module.registerHooks) module.registerHooks({ load: (...args) => loadHook(given, ...args) })
  else module.register('data:text/javascript,' + encodeURIComponent(`import fs from 'node:fs'; import module from 'node:module'
    ${loadHook}; export const load = async (...args) => loadHook(${stringify(given)}, ...args)`))
  return import(given.url)
}

function loadHook(given, url, context, next) {
  if (url === given.url) return { format: 'module', source: given.code, shortCircuit: true }
  if (!given.strip || !/^file:.*[.][mc]?ts$/.test(url)) return next(url, context)
  const source = module.stripTypeScriptTypes(fs.readFileSync(new URL(url), 'utf8'))
  return { format: url.endsWith('.cts') ? 'commonjs' : 'module', source, shortCircuit: true }
}

// loadCommon is the same for CommonJS.
function loadCommon(code) {
  const own = module._cache[file] = new module(file)
  Object.assign(own, { filename: file, paths: module._nodeModulePaths(path.dirname(file)) })
  own._compile(code, file)
  return { default: own.exports }
}

// loadFailure is what went wrong, on one line that begins as compilers' do.
function loadFailure(err) {
  const stack = String(err?.stack ?? ''), message = messageOf(err).split('\n')[0]
  const label = err instanceof Error ? `${err.name}: ` : ''
  let line = placeIn(stack, file) ?? placeIn(stack, pathToFileURL(file).href)
  let elsewhere = ''
  const foreign = /^(?:file:\/\/)?(\/.*|[A-Z]:.*):(\d+)\n/.exec(stack) // where a file that was imported is broken
  if (foreign && path.resolve(foreign[1]) !== file) elsewhere = ` (${path.basename(foreign[1])}:${foreign[2]})`
  try {
    const wanted = /MODULE_NOT_FOUND$/.test(err?.code) && /'(?:[^']*[/\\])?([^']+)'/.exec(message)?.[1]
    if (wanted) line ??= text.split('\n').findIndex(l => l.includes(wanted)) + 1
    if (!line && err instanceof SyntaxError) {
      // Only Node's own report of it says where; this runs nothing of the file.
      const input = /ts$/.test(base) ? module.stripTypeScriptTypes(text) : text
      const checked = spawnSync(process.execPath, ['--no-warnings', '--input-type=module', '--check'], { input, encoding: 'utf8' })
      line = placeIn(checked.stderr, '[stdin]')
      if (!line) elsewhere = elsewhere || ' (in a file that it imports)'
    }
  } catch {} // then there is no line
  return `${base}${line ? ':' + line : ''}: ${label}${message}${elsewhere}`
}

function placeIn(text, place) {
  const at = text.indexOf(place + ':')
  return at < 0 ? undefined : /^\d+/.exec(text.slice(at + place.length + 1))?.[0]
}

// ---- Which methods it has

// findMethods lists what the module exports, in the order of its source.
function findMethods(loaded, isModule, source) {
  const list = []
  const add = (name, run, holder, entry) => {
    if (typeof run !== 'function' || isClass(run) || name.startsWith('_') || name === '' || entry?.hidden) return
    const known = entry && source.resolve(entry)
    const tool = safely(() => source.tool(name, known)) ?? { name, inputSchema: { type: 'object' } }
    list.push({ at: known ? known.at : Infinity, run, holder, tool })
  }
  // whole is what stands for the module: a class, an object of functions, or
  // one function.
  const addWhole = (whole, entry) => {
    const members = entry && source.resolve(entry).members
    if (isClass(whole)) {
      const object = new whole()
      for (const [name, d] of Object.entries(Object.getOwnPropertyDescriptors(whole.prototype))) {
        if (name !== 'constructor') add(name, d.value, object, members?.get(name))
      }
      if (!about && entry) about = source.resolve(entry).doc
    } else if (typeof whole === 'function') {
      if (!whole.name || whole.name === 'default') log('the default export is a function without a name; give it one to have it hosted')
      else add(whole.name, whole, undefined, entry)
    } else if (kind(whole) === 'object') {
      for (const name of Object.keys(whole)) add(name, whole[name], whole, members?.get(name) ?? source.exported.get(name) ?? source.local.get(name))
    }
  }
  // Compilers to CommonJS mark what was written as an ES module.
  const names = isModule ? loaded : loaded.default?.__esModule ? loaded.default : null
  if (names) {
    for (const name of Object.keys(names)) {
      if (name !== 'default') add(name, names[name], undefined, source.exported.get(name) ?? source.local.get(name))
    }
    addWhole(names.default, source.exported.get('default'))
  } else {
    addWhole(loaded.default, source.exported.get('module.exports'))
  }
  return list.sort((a, b) => a.at === b.at ? 0 : a.at - b.at)
}

function isClass(f) { return typeof f === 'function' && /^class\b/.test(Function.prototype.toString.call(f)) }

// ---- What the source says

// A schema is made of these keys, in this order, as usher writes them.
const SCHEMA = ['$ref', 'type', 'description', 'enum', 'items', 'properties', 'required', 'additionalProperties', 'anyOf', '$defs']
const MISSING = Symbol('undefined is among its values')
const MODIFIER = /^(static|async|get|set|public|private|protected|override|\*)$/
const DIRECTIVE = /^\/[/*]+\s*(eslint|@ts-|prettier-|biome-|<reference|#region|istanbul|c8 |v8 )/
const BEFORE_REGEX = /^(return|typeof|case|in|of|delete|void|throw|new|do|else|yield|await|instanceof|default)$/
const TOKENS = [ // kinds and how they look; strings, templates, comments apart
  ['number', /\.?\d(?:[eE][+-]|[\w.])*/y],
  ['name', /[\p{ID_Start}$_#\\@][\p{ID_Continue}$\u200c\u200d\\]*/uy],
  ['mark', /=>|\.\.\.|\?\.(?!\d)|\+\+|--|[=!]==?|[^]/y],
]

// A Source is a text of JavaScript or TypeScript as tokens, and what can be told
// of it by them. Odd code yields less, never an error.
class Source {
  tokens = [] // kind (number, name, mark, string, template, regex), text, start, end
  close = [] // by an opening bracket's index, the closing one's
  notes = new Map() // comments, by the index of the token that follows
  types = new Map() // aliases and interfaces by name: at, doc, base
  local = new Map() // functions, classes and values by name: at, doc; params, members or alias
  exported = new Map()
  isModule = false
  about = '' // the comment that the file begins with

  constructor(text) {
    this.text = text
    this.scan(text.startsWith('#!') ? this.find('\n', 0) : 0)
  }

  // scan splits the text from i on. What a template has between ${ and } becomes
  // tokens in brackets like any other.
  scan(i) {
    const { text, tokens, close, notes } = this, open = []
    const push = (kind, end) => {
      tokens.push({ kind, text: text.slice(i, end), start: i, end })
      i = end
    }
    const string = (quote, from) => { // up to the quote, to ${ in a template, or to the end
      let end = from
      const ends = quote === '`' ? at => text.startsWith('${', at) : at => text[at] === '\n'
      while (end < text.length && text[end] !== quote && !ends(end)) end += text[end] === '\\' ? 2 : 1
      const inner = text[end] === '$'
      push(quote === '`' ? 'template' : 'string', Math.min(inner ? end : end + 1, text.length))
      if (inner) open.push(tokens.length) && push('mark', end + 2)
    }
    while (i < text.length) {
      const c = text[i], two = text.slice(i, i + 2)
      if (/\s/.test(c)) {
        i++
      } else if (two === '//' || two === '/*') {
        const end = two === '//' ? this.find('\n', i) : this.find('*/', i + 2) + 2
        if (!notes.has(tokens.length)) notes.set(tokens.length, [])
        notes.get(tokens.length).push({ text: text.slice(i, end).trimEnd(), start: i, end })
        i = end
      } else if (/["'`]/.test(c)) {
        string(c, i + 1)
      } else if (c === '}' && tokens[open.at(-1)]?.text === '${') {
        close[open.pop()] = tokens.length
        push('mark', i + 1)
        string('`', i)
      } else if (c === '/' && this.regexMayStart(i) && this.regexEnd(i)) {
        push('regex', this.regexEnd(i))
      } else {
        TOKENS.some(([kind, look]) => {
          look.lastIndex = i
          const found = look.exec(text)
          return found && (push(kind, i + found[0].length), true)
        })
        const at = tokens.length - 1
        if ('([{'.includes(c)) open.push(at)
        if (')]}'.includes(c)) { // brackets between the two were never closed
          const opening = open.findLastIndex(o => tokens[o].text === '([{'[')]}'.indexOf(c)])
          if (opening >= 0) for (const o of open.splice(opening)) close[o] = at
        }
      }
    }
    for (const o of open) close[o] = tokens.length
  }

  // regexMayStart tells by what stands before a / whether it divides.
  regexMayStart(i) {
    const last = this.tokens.at(-1), before = this.tokens.at(-2)
    if (!last || last.kind === 'name') return !last || BEFORE_REGEX.test(last.text) && before?.text !== '.'
    if (last.kind !== 'mark' || last.text === ']') return false
    if (last.text === ')') return /^(if|while|for)$/.test(this.tokens[this.close.lastIndexOf(this.tokens.length - 1) - 1]?.text)
    if (last.text === '}') return this.text.slice(last.end, i).includes('\n')
    return !/^(\+\+|--|!)$/.test(last.text) || !(before?.kind === 'name' || before?.text === ')') // a++ / b, TypeScript's a! / b
  }

  // regexEnd is where the regular expression at i ends; 0 if none does on its line.
  regexEnd(i) {
    for (let k = i + 1, set = false; k < this.text.length && this.text[k] !== '\n'; k++) {
      const c = this.text[k]
      if (c === '\\') k++
      else if (c === '[' || c === ']') set = c === '['
      else if (c === '/' && !set) return k + 1 + /^\w*/.exec(this.text.slice(k + 1, k + 9))[0].length
    }
    return 0
  }

  find(what, from) {
    const at = this.text.indexOf(what, from)
    return at < 0 ? this.text.length : at
  }

  is(i, ...texts) { return this.tokens[i]?.kind !== 'string' && texts.includes(this.tokens[i]?.text) }
  isName(i) { return this.tokens[i]?.kind === 'name' }
  skip(i) { return (this.close[i] ?? i) + 1 } // the token, or all of its brackets
  newLine(i) { return this.text.slice(this.tokens[i - 1]?.end ?? 0, this.tokens[i]?.start).includes('\n') }

  // key is the name of a property: as it stands, or what the string says.
  key(i) {
    const t = this.tokens[i]
    if (t?.kind === 'string') return t.text.slice(1, -1).replace(/\\(.)/g, '$1')
    return t?.kind === 'name' || t?.kind === 'number' ? t.text : undefined
  }

  // skipAngles passes type parameters, if there are any.
  skipAngles(i) {
    for (let k = i, depth = 0; this.is(i, '<') && k < this.tokens.length && !this.is(k, ';'); k = this.skip(k)) {
      if (this.is(k, '<')) depth++
      if (this.is(k, '>') && --depth === 0) return k + 1
    }
    return i
  }

  // ---- Comments

  // docAbove is the text of the comment directly above a token: /** … */, or
  // lines of //. Notes to linters and compilers are passed over.
  docAbove(i) {
    const lines = []
    let below = this.tokens[i]?.start
    for (const c of (this.notes.get(i) ?? []).toReversed()) {
      const gap = this.text.slice(c.end, below), block = c.text.startsWith('/*')
      const ownLine = /^\s*$/.test(this.text.slice(this.text.lastIndexOf('\n', c.start) + 1, c.start))
      if (/\n\s*\n/.test(gap) || gap.includes('\n') && !ownLine) break
      below = c.start
      if (DIRECTIVE.test(c.text)) continue
      if (block && (lines.length > 0 || !c.text.startsWith('/**'))) break
      lines.unshift(clean(c.text))
      if (block) break
    }
    return lines.join('\n').trim()
  }

  // docBehind is the comment that ends a line, before or behind the separator i.
  docBehind(i) {
    const found = (this.is(i, ';', ',') ? [i, i + 1] : [i]).flatMap(k => (this.notes.get(k) ?? []).filter(c =>
      !this.text.slice(this.tokens[i - 1].end, c.start).includes('\n') &&
      (!this.tokens[k] || this.is(k, ';', ',', '}', ')') || this.text.slice(c.end, this.tokens[k].start).includes('\n'))))
    return found.length > 0 ? clean(found[0].text) : ''
  }

  // ---- Declarations

  // read finds what the top level of the file declares and exports.
  read() {
    const functions = new Set() // their first tokens
    for (let i = 0; i < this.tokens.length;) {
      const next = this.is(i - 1, '.', '?.') ? i : this.statement(i, functions)
      i = next > i ? next : this.skip(i)
    }
    let i = 0
    while (this.tokens[i]?.kind === 'string' || this.is(i, ';')) i++ // 'use strict'
    const list = [...Array(i + 1).keys()].flatMap(k => this.notes.get(k) ?? []).filter(c => !DIRECTIVE.test(c.text))
    const isLast = (c, k) => c.text.startsWith('/*') || !list[k + 1] || /\n\s*\n/.test(this.text.slice(c.end, list[k + 1].start))
    const text = list.slice(0, list.findIndex(isLast) + 1).map(c => clean(c.text)).join('\n').trim()
    if (!functions.has(i) || this.docAbove(i) !== text) this.about = text
  }

  // statement reads the declaration that begins at a token, if one does, and
  // returns where to go on.
  statement(start, functions) {
    const entry = { at: start, doc: this.docAbove(start) }
    const exporting = this.is(start, 'export')
    let k = start + (exporting ? 1 : 0)
    const declare = (names, maps, next) => {
      if (entry.params) functions.add(start)
      for (const map of maps) for (const name of names) if (name && !map.has(name)) map.set(name, entry)
      return next
    }
    const maps = exporting ? [this.exported, this.local] : [this.local]
    if (exporting || this.is(k, 'import') && !this.is(k + 1, '(', '.')) this.isModule = true
    if (exporting && this.is(k, '{')) return this.exportList(k)
    const whole = exporting && this.is(k, 'default') && ++k
    while (this.is(k, 'declare', 'abstract') && this.isName(k + 1)) k++
    if (this.is(k, 'function', 'class') || this.is(k, 'async') && this.is(k + 1, 'function')) {
      let at = k + (this.is(k, 'async') ? 2 : 1)
      if (this.is(at, '*')) at++
      const name = this.isName(at) && !this.is(at, 'extends') ? this.tokens[at].text : ''
      const next = this.value(k, entry)
      if (whole) this.exported.set('default', entry)
      return declare([name], whole ? [this.local] : maps, next)
    }
    if (whole) return declare(['default'], [this.exported], this.value(k, entry))
    if (this.is(k, 'const', 'let', 'var') && this.isName(k + 1)) {
      const at = this.is(k + 2, ':') ? this.skipType(k + 3) : k + 2
      const next = this.is(at, '=') ? this.value(at + 1, entry) : at
      return declare([this.tokens[k + 1].text], maps, next)
    }
    if (this.is(k, 'type', 'interface') && this.isName(k + 1)) return this.typeDeclaration(k, entry.doc)
    const cjs = this.is(k, 'exports') ? k + 1 : this.is(k, 'module') && this.is(k + 1, '.') && this.is(k + 2, 'exports') ? k + 3 : 0
    const at = this.is(cjs, '.') ? cjs + 2 : cjs
    if (!cjs || !this.is(at, '=')) return this.skip(k)
    return declare([at > cjs ? this.key(at - 1) : 'module.exports'], [this.exported], this.value(at + 1, entry))
  }

  exportList(open) {
    const end = this.close[open]
    for (let i = open + 1; i < end && !this.is(end + 1, 'from'); i++) {
      this.exported.set(this.key(this.is(i + 1, 'as') ? i + 2 : i), { at: i, doc: '', alias: this.key(i) })
      while (i < end && !this.is(i, ',')) i++
    }
    return end + 1
  }

  typeDeclaration(k, doc) {
    const after = this.skipAngles(k + 2), at = this.is(k, 'type') ? after + 1 : after
    if (this.is(k, 'type') && !this.is(after, '=')) return k + 1
    this.types.set(this.tokens[k + 1].text, { at, doc: flat(doc), generic: after > k + 2, extends: this.is(k, 'interface') })
    return this.is(k, 'type') ? this.skipType(at) : this.skip(this.bodyOf(at))
  }

  // bodyOf is the { of a class or an interface whose name stands before i.
  bodyOf(i) {
    while (i < this.tokens.length && !this.is(i, '{')) i = Math.max(this.skipAngles(i), this.skip(i))
    return i
  }

  // value reads what is assigned: a function, a class, an object, or the name of
  // one. It returns a place behind what it has read.
  value(i, entry) {
    if (this.is(i, 'class', '{')) {
      const open = this.bodyOf(i)
      entry.members = this.members(open, this.is(i, 'class'))
      return this.skip(open)
    }
    let k = this.is(i, 'async') ? i + 1 : i
    if (this.is(k, 'function')) while (k < this.tokens.length && !this.is(k, '(', '<')) k++
    const paren = this.skipAngles(k), after = this.skip(paren)
    if (this.is(paren, '(') && (k > i + 1 || this.is(i, 'function') || this.is(after, '=>', ':'))) entry.params = [paren + 1, after - 1]
    else if (this.isName(k) && this.is(k + 1, '=>')) entry.params = [k, k + 1]
    else if (this.isName(i) && (!this.tokens[i + 1] || this.is(i + 1, ';', ',', '}') || this.newLine(i + 1))) entry.alias = this.key(i)
    return entry.params && this.is(paren, '(') ? after : i
  }

  // members are what a class or an object has by name. A method is what has
  // brackets behind its name, and behind those its body or its type.
  members(open, isClass) {
    const list = new Map(), end = Math.min(this.close[open] ?? 0, this.tokens.length)
    for (let i = open + 1; i < end;) {
      const start = i
      while (MODIFIER.test(this.tokens[i]?.text) && !this.is(i + 1, '(', ',', ':', '=', '<', '}')) i++
      const name = this.key(i), paren = this.skipAngles(i + 1), after = this.skip(paren)
      const entry = { at: start, doc: this.docAbove(start) }
      const words = this.tokens.slice(start, i).map(t => t.text)
      if (this.is(paren, '(') && (!isClass || this.is(after, '{', ':', ';'))) entry.params = [paren + 1, after - 1]
      else if (!isClass && this.is(i + 1, ':')) this.value(i + 2, entry)
      else if (!isClass) entry.alias = name
      entry.hidden = words.includes('private') || words.includes('protected')
      if (name !== undefined && (!isClass || entry.params && !words.includes('static')) && !list.has(name)) list.set(name, entry)
      i = this.skip(i)
      if (isClass && entry.params) i = this.is(after, ':') ? this.skipType(after + 1) : after
      while (!isClass && i < end && !this.is(i - 1, ',')) i = this.skip(i)
    }
    return list
  }

  // resolve follows names to what was declared under them.
  resolve(entry) {
    for (let hops = 0; entry.alias && this.local.has(entry.alias) && hops < 8; hops++) {
      const next = this.local.get(entry.alias)
      entry = { ...next, doc: entry.doc || next.doc }
    }
    return entry
  }

  // ---- Tools and their schemas

  // tool is the MCP definition of a method. usher takes the tags out of the
  // description and applies them.
  tool(name, entry) {
    const lines = paramLines(entry?.doc ?? '')
    const { schema, param } = entry?.params ? this.input(entry.params, lines) : { schema: { type: 'object' } }
    // Of the one object that methods take, usher knows nothing: what documents it
    // as params and params.x is left with x.
    const description = lines.flatMap(l => {
      if (!param || l.name !== param && !l.name?.startsWith(param + '.')) return [l.line]
      return l.name === param ? [] : [l.before + l.rest.replace(param + '.', '')]
    }).join('\n').trim()
    return { name, ...(description && { description }), inputSchema: schema }
  }

  // input is the schema of a method's object of parameters, by the type of its
  // first parameter, or by what is taken out of that; and what it is called.
  input([i, end], lines) {
    if (this.is(i, 'this') && this.is(i + 1, ':')) i = this.skipType(i + 2) + 1
    if (i >= end) return { schema: { type: 'object', properties: {} } }
    const fields = this.is(i, '{') ? this.pattern(i) : null
    const root = lines.find(l => l.name)
    const param = fields ? (root && !(root.name in fields) ? root.name.split('.')[0] : '') : this.key(i)
    let at = this.skip(i), schema = {}
    if (this.is(at, '?')) at++
    this.begin()
    if (this.is(at, ':')) schema = this.written(this.type(at + 1))
    else if (root?.kind && root.name === param) schema = this.written(this.typeIn(root.kind))
    schema = schema.type === 'object' ? { ...schema, description: undefined } : { type: 'object' } // the tool has a description
    if (fields) {
      const untyped = !schema.properties
      schema.properties ??= Object.keys(fields).reduce((all, key) => Object.assign(all, { [key]: {} }), Object.create(null))
      schema.required ??= untyped && !this.is(at, ':') ? Object.keys(fields) : []
      for (const [key, { fallback, doc }] of Object.entries(fields)) {
        const left = fallback || untyped && lines.some(l => l.optional && l.name?.split('.').at(-1) === key)
        if (left) schema.required = schema.required.filter(r => r !== key)
        const part = schema.properties[key]
        if (part && doc && !part.description) schema.properties[key] = ordered({ ...part, description: doc })
      }
    }
    delete schema.properties?._webhook
    schema.required = schema.required?.filter(key => key !== '_webhook')
    return { schema: ordered({ ...schema, $defs: Object.keys(this.defs).length > 0 ? this.defs : undefined }), param }
  }

  // pattern is what { a, b: c = 1 } takes out of an object, by name.
  pattern(open) {
    const fields = Object.create(null), end = this.close[open]
    for (let i = open + 1; i < end; i++) {
      const start = i, key = this.is(i, '...') ? undefined : this.key(i)
      let fallback = false
      for (; i < end && !this.is(i, ','); i = this.skip(i)) fallback ||= this.is(i, '=')
      if (key !== undefined) fields[key] = { fallback, doc: flat(this.docAbove(start) || this.docBehind(i)) }
    }
    return fields
  }

  // ---- Types, from this.pos on. What can't be read has no constraint: {}.

  begin() { Object.assign(this, { open: new Set(), recursive: new Set(), defs: Object.create(null) }) }

  type(i) {
    this.pos = i
    return this.union()
  }

  // typeIn reads a type that stands in a comment, as if it stood behind the file.
  typeIn(text) {
    const at = this.tokens.length, from = this.text.length
    this.text += '\n' + text
    this.scan(from)
    return this.type(at)
  }

  skipType(i) {
    this.begin()
    this.type(i)
    return this.pos
  }

  // written is a schema itself instead of a reference to it.
  written(s) { return s.$ref ? this.defs[s.$ref.slice('#/$defs/'.length)] ?? {} : s }

  eat(...texts) { return this.is(this.pos, ...texts) && ++this.pos > 0 }

  union() {
    const parts = []
    this.eat('|')
    do parts.push(this.intersection())
    while (this.eat('|'))
    if (!this.is(this.pos, 'extends') || this.newLine(this.pos)) return joined(parts)
    while (this.eat('extends', '?', ':')) this.intersection() // a condition
    return {}
  }

  intersection() {
    const parts = []
    this.eat('&')
    do parts.push(this.postfix())
    while (this.eat('&'))
    return merged(parts.length > 1 ? parts.map(p => this.written(p)) : parts)
  }

  postfix() {
    let s = this.primary()
    while (this.is(this.pos, '[') && !this.newLine(this.pos)) {
      s = this.close[this.pos] === this.pos + 1 ? { type: 'array', items: s } : {}
      this.pos = this.skip(this.pos)
    }
    return s
  }

  primary() {
    const start = this.pos, t = this.tokens[start]
    if (!t) return {}
    this.pos++
    if (t.kind === 'string') return { type: 'string', enum: [this.key(start)] }
    if (t.kind === 'number') return { type: 'number', enum: [Number(t.text)] }
    if (t.kind === 'name') return this.word(t.text)
    if (t.kind === 'template') {
      while (this.is(this.pos, '${') || this.tokens[this.pos]?.kind === 'template') this.pos = this.skip(this.pos)
      return { type: 'string' }
    }
    const paren = this.skipAngles(start)
    this.pos = start
    if (this.eat('-')) return { type: 'number', enum: [-Number(this.tokens[this.pos++]?.text)] }
    if (this.is(start, '{')) return this.object()
    if (this.is(paren, '(') && this.is(this.skip(paren), '=>')) { // a function
      this.type(this.skip(paren) + 1)
      return {}
    }
    const inner = this.is(start, '(') ? this.type(start + 1) : { type: 'array' }
    if (this.is(start, '(', '[')) this.pos = this.skip(start)
    return this.is(start, '(', '[') ? inner : {}
  }

  word(text) {
    switch (text) {
      case 'string': case 'number': case 'boolean': case 'object': case 'null':
        return { type: text }
      case 'true': case 'false':
        return { type: 'boolean', enum: [text === 'true'] }
      case 'undefined': case 'void':
        return { [MISSING]: true }
      case 'readonly':
        return this.postfix()
      case 'keyof': case 'typeof': case 'unique': case 'infer': case 'asserts': case 'new': case 'abstract':
        this.postfix()
        return {}
    }
    const args = []
    while (this.eat('.')) text += '.' + this.tokens[this.pos++]?.text
    if (this.eat('is')) this.postfix()
    const after = this.skipAngles(this.pos)
    if (this.eat('<')) {
      do args.push(this.union())
      while (this.eat(','))
      this.pos = after
    }
    if (this.types.has(text)) return this.declared(text, this.types.get(text))
    if (text === 'Array' || text === 'ReadonlyArray') return ordered({ type: 'array', items: args[0] })
    if (text === 'Record') return ordered({ type: 'object', additionalProperties: args[1] })
    if (text === 'Partial') return ordered({ ...this.written(args[0] ?? {}), required: undefined })
    return text === 'Readonly' ? args[0] ?? {} : {}
  }

  // declared is a type of the file. One that contains itself is put into the
  // definitions and referred to; all others are written out.
  declared(name, { at, doc, generic, extends: mayExtend }) {
    const ref = { $ref: '#/$defs/' + name }, back = this.pos
    if (this.open.has(name)) this.recursive.add(name)
    if (this.open.has(name) || this.defs[name]) return ref
    if (generic) return {}
    this.open.add(name)
    const bases = []
    this.pos = at
    if (mayExtend && this.eat('extends')) do bases.push(this.written(this.postfix())); while (this.eat(','))
    let s = mayExtend ? merged([...bases.filter(b => b.properties), this.object()]) : this.union()
    this.open.delete(name)
    this.pos = back
    if (doc) s = ordered({ ...s, description: doc })
    if (!this.recursive.has(name)) return s
    this.defs[name] = s
    return ref
  }

  // object reads { a: string; b?: number }.
  object() {
    const end = Math.min(this.close[this.pos] ?? 0, this.tokens.length), properties = Object.create(null), required = []
    let rest
    for (this.pos++; this.pos < end;) {
      const start = this.pos
      if (this.eat(';', ',')) continue
      if (this.is(start, 'readonly') && !this.is(start + 1, ':', '?', '(')) this.pos++
      const index = this.is(this.pos, '[') && this.is(this.pos + 2, ':') // [key: string]: T
      const key = this.key(this.pos)
      this.pos = this.skip(this.pos)
      const optional = this.eat('?'), paren = this.skipAngles(this.pos), method = this.is(paren, '(')
      if (method) this.pos = this.skip(paren)
      const part = this.eat(':') ? this.union() : {}
      if (index) rest = part
      if (key === undefined || method) continue
      properties[key] = ordered({ ...part, description: flat(this.docAbove(start) || this.docBehind(this.pos)) || part.description })
      if (!optional && !part[MISSING]) required.push(key)
    }
    this.pos = end + 1
    const map = rest && Object.keys(properties).length === 0 // nothing but an index
    return ordered({ type: 'object', properties: map ? undefined : properties, required, additionalProperties: rest })
  }
}

// ordered is a schema with its keys in order and without those that say nothing.
function ordered(s) {
  const keys = SCHEMA.filter(key => s[key] !== undefined && !(key === 'required' && s.required.length === 0))
  return Object.assign(Object.fromEntries(keys.map(key => [key, s[key]])), s[MISSING] && { [MISSING]: true })
}

// joined is the union of schemas.
function joined(all) {
  const missing = all.some(s => s[MISSING]) && { [MISSING]: true }
  const parts = all.filter(s => !s[MISSING] || Object.keys(s).length > 0)
  if (parts.length === 0 || parts.some(s => !s.type && !s.$ref && !s.anyOf)) return { ...missing }
  const values = parts.filter(s => s.type !== 'null'), [one] = values
  if (parts.length === 1) return { ...one ?? parts[0], ...missing }
  if (values.length === 1 && one.type) { // T | null
    return ordered({ ...one, type: [one.type, 'null'].flat(), enum: one.enum && [...one.enum, null], ...missing })
  }
  if (parts.some(s => Object.keys(s).some(key => key !== 'type' && key !== 'enum'))) return { anyOf: parts, ...missing }
  const types = [...new Set(parts.flatMap(s => s.type))], literals = new Set(parts.flatMap(s => s.enum ?? [null]))
  const listed = parts.every(s => s.enum || s.type === 'null') && !(literals.has(true) && literals.has(false))
  return ordered({ type: types.length === 1 ? types[0] : types, enum: listed ? [...literals] : undefined, ...missing })
}

// merged is the intersection of schemas: of objects, all their properties.
function merged(parts) {
  const plain = parts.find(s => s.type && s.type !== 'object'), objects = parts.filter(s => s.properties)
  if (parts.length === 1 || plain) return plain ?? parts[0] // such as string & { brand: … }
  if (objects.length === 0) return {}
  return ordered({
    type: 'object', properties: Object.assign(Object.create(null), ...objects.map(s => s.properties)),
    required: [...new Set(objects.flatMap(s => s.required ?? []))],
  })
}

// clean is a comment's text without its marks.
function clean(text) {
  if (text.startsWith('//')) return text.replace(/^\/\/+ ?/, '')
  const lines = text.replace(/^\/\*[*!]*/, '').replace(/\*+\/$/, '').split('\n')
  return lines.map(line => line.replace(/^\s*\* ?/, '').trimEnd()).join('\n').trim()
}

function flat(text) { return text.replace(/\s+/g, ' ').trim() }

// PARAM is a line of @param: what stands before the name, the type in it, the
// rest, and the name.
const PARAM = /^(\s*@param\s+(?:\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\s*)?)(\[?\s*([^\s\]=]*).*)$/

// paramLines is a comment by lines; those of @param with their parts.
function paramLines(doc) {
  return doc.split('\n').map(line => {
    const [, before, kind = '', rest, name] = PARAM.exec(line) ?? []
    return { line, before, kind, rest, name, optional: rest?.[0] === '[' || kind.endsWith('=') }
  })
}

// ---- The start: all above is declared

const loading = load().then(found => {
  methods = found
  waiting.forEach(receive)
}, err => {
  log(loadFailure(err))
  process.exit(1)
})

pipes.input.on('data', chunk => {
  for (let end; (end = chunk.indexOf(10)) >= 0; chunk = chunk.subarray(end + 1)) {
    receive(Buffer.concat([...parts, chunk.subarray(0, end)]).toString())
    parts = []
  }
  if (chunk.length > 0) parts.push(chunk)
})
pipes.input.on('error', hangUp).on('close', hangUp).on('end', hangUp)
