// The Node.js runtime of usher: it serves the functions of one NAME.usher.js, .mjs, .ts
// or .mts as MCP tools over stdin and stdout, one JSON-RPC message per line.
//
//     node shim.mjs FILE
//
// usher checks the arguments of a call before it sends them, and makes the tool result
// from the returned value.
//
// In reading order: the pipes, the protocol, calls, results, loading the file, finding
// its methods, and reading its source: a scanner that accepts any text finds comments
// and types.

import { AsyncLocalStorage } from 'node:async_hooks'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import module from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { Readable } from 'node:stream'
import { pathToFileURL } from 'node:url'
import { inspect } from 'node:util'

const LEVELS = 'debug info notice warning error critical alert emergency'.split(' ')

const { writeSync } = fs // the module may replace it
const { stringify } = JSON
const file = path.resolve(process.argv[2])
const base = path.basename(file)
const name = base.split('.usher')[0]
const text = fs.readFileSync(file, 'utf8')
process.argv.splice(2) // the module must not see usher's argument

const pipes = takeStdio()

// ---- The pipes

// takeStdio takes the protocol's pipes away from the module and returns them. From then
// on, what the module or one of its child processes prints goes to usher's log, and
// reading finds nothing. Node can't duplicate descriptors, but Unix opens them by name.
function takeStdio() {
  try {
    if (fs.fstatSync(0).isFIFO() && fs.fstatSync(1).isFIFO()) {
      const input = fs.openSync('/dev/fd/0', 'r')
      const output = fs.openSync('/dev/fd/1', 'a')
      // If this fails, descriptor 1 is still open.
      fs.closeSync(fs.openSync('/dev/fd/2', 'a'))
      fs.closeSync(0)
      fs.openSync('/dev/null', 'r') // takes the lowest free number: 0
      fs.closeSync(1)
      fs.openSync('/dev/fd/2', 'a')
      return { input: new net.Socket({ fd: input, writable: false }), output }
    }
  } catch {
    // This system has no /dev/fd. What follows misses only writes to descriptor 1.
  }
  const own = { input: process.stdin, output: 1 }
  Object.defineProperty(process, 'stdin', { value: Readable.from([]) })
  Object.defineProperty(process, 'stdout', { value: process.stderr })
  module.syncBuiltinESMExports()
  return own
}

// log writes a record to stderr, which is usher's log. usher turns each \v into a new line.
function log(text) {
  process.stderr.write(text.replaceAll('\n', '\v') + '\n')
}

// write sends one line, all of it before it returns, because the module may end the
// process at any time. If the module can write to stdout, a newline comes first, to end
// a line that the module has left unfinished.
function write(line) {
  const start = pipes.output === 1 ? '\n' : ''
  const bytes = Buffer.from(`${start}${line}\n`)
  let at = 0
  while (at < bytes.length) {
    try {
      at += writeSync(pipes.output, bytes, at)
    } catch (err) {
      if (err.code !== 'EAGAIN') process.exit(0) // usher is gone
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2)
    }
  }
}

function send(message) {
  write(stringify({ jsonrpc: '2.0', ...message }))
}

// ---- The protocol

const calls = new Map() // by request id
// asks has the functions that take the client's answers, by the ids of the asks.
const asks = new Map()
let asked = 0
// current has the call that the running code belongs to.
const current = new AsyncLocalStorage()
// methods has the methods by name. It is null while the file is loading.
let methods = null
// waiting has the lines that came while the file was loading.
const waiting = []
// parts has the beginning of an incomplete line.
let parts = []
let about = '' // the module's description
const problems = new Set() // with the functions, for their author

// onUncaught logs an error that nobody catches, and fails the call that it belongs to,
// which might wait forever otherwise. The process goes on, for the sake of other calls.
function onUncaught(err) {
  log(`uncaught: ${stackOf(err)}`)
  current.getStore()?.settle(failure(messageOf(err)))
}
process.on('uncaughtException', onUncaught)
process.on('unhandledRejection', onUncaught)

// onData handles a chunk of input.
function onData(chunk) {
  let end
  while ((end = chunk.indexOf('\n')) >= 0) {
    receive(Buffer.concat([...parts, chunk.subarray(0, end)]).toString())
    parts = []
    chunk = chunk.subarray(end + 1)
  }
  parts.push(chunk)
}

// onEnd ends the process, as nobody waits for an answer any more. It handles the lines
// before the end first: a person may have piped some in.
async function onEnd() {
  await loading
  setImmediate(() => process.exit(0))
}

function receive(line) {
  if (!methods) {
    waiting.push(line)
    return
  }
  const { id, method, params, ...answer } = JSON.parse(line)
  if (method === 'notifications/cancelled') {
    calls.get(params.requestId)?.cancel()
  } else if (method === undefined) {
    asks.get(id)?.(answer)
  } else if (method === 'tools/call' && methods.has(params.name)) {
    const call = new Call(id, params)
    current.run(call, () => call.run(methods.get(params.name), params.arguments ?? {}))
  } else if (id !== undefined) {
    const error = { code: -32601, message: `unknown method or tool in ${method}` }
    const result = reply(method, params)
    send(result ? { id, result } : { id, error })
  }
}

// reply returns the result of a request that calls no method, null if it's unknown.
function reply(method, params) {
  switch (method) {
    case 'initialize':
      return {
        protocolVersion: params.protocolVersion,
        capabilities: {
          tools: {},
          experimental: { 'usher/problems': { problems: [...problems] } },
        },
        serverInfo: { name, version: '1' },
        instructions: about.replace(/^\s*@.*$/gm, ''), // usher uses the first sentence
      }
    case 'tools/list':
      return { tools: [...methods.values()].map(method => method.tool) }
  }
  return null
}

// ---- Calls

// A Call is one tools/call in progress. After its answer nothing more is sent for it.
// After a cancellation only its end is sent, because usher counts running calls.
class Call {
  ended = false // answered or cancelled
  cancelled = false
  stopAsking = null // ends the wait for the client's answer

  constructor(id, params) {
    this.id = id
    this.token = params._meta?.progressToken
    calls.set(id, this)
  }

  async run(method, args) {
    try {
      let value = await Reflect.apply(method.run, method.holder, [args])
      const tag = Object.prototype.toString.call(value)
      if (/^\[object (Async)?Generator\]$/.test(tag)) value = await this.drive(value)
      if (!this.ended) this.settle(result(value))
    } catch (err) {
      log(`${method.tool.name}: ${stackOf(err)}`)
      this.settle(failure(messageOf(err)))
    } finally {
      calls.delete(this.id)
      if (this.cancelled) send({ id: this.id, result: {} })
    }
  }

  // end ends the call, and the wait for the client's answer.
  end() {
    this.ended = true
    this.stopAsking?.()
  }

  // cancel ends the call. It tells usher that this thread is not blocked.
  cancel() {
    this.cancelled = true
    this.end()
    send({ method: 'usher/cancelled', params: { requestId: this.id } })
  }

  // settle answers the call, once. The result is JSON.
  settle(result) {
    if (this.ended) return
    this.end()
    write(`{"jsonrpc":"2.0","id":${stringify(this.id)},"result":${result}}`)
  }

  // drive runs a generator to its end and returns its result. The generator yields
  // progress, log messages, requests to the client, whose answers it gets back, and
  // other values. The latest of these is the result if it returns none.
  async drive(steps) {
    let last
    let resume = () => steps.next()
    for (;;) {
      const { done, value } = await resume()
      if (done) return value === undefined ? last : value
      // Let other calls and a cancellation proceed, even if the generator never waits.
      await new Promise(setImmediate)
      resume = () => steps.next()
      if (this.ended) return steps.return()
      if (hasOnly(value, 'ask', 'params')) {
        try {
          const answer = await this.ask(value)
          resume = () => steps.next(answer)
        } catch (err) {
          resume = () => steps.throw(err)
        }
        if (this.ended) return steps.return()
      } else if (hasOnly(value, 'progress', 'total', 'message')) {
        this.progress(value)
      } else if (hasOnly(value, 'log', 'level')) {
        this.message(value)
      } else {
        last = value
      }
    }
  }

  // ask sends a request to the client, and waits for the answer or the end of the call.
  async ask({ ask: method, params = {} }) {
    const id = `ask-${++asked}`
    try {
      params = JSON.parse(toJSON(params))
      if (kind(params) !== 'object') throw new TypeError(`it is ${kind(params)}`)
    } catch (err) {
      const problem = 'ask: params must be an object that can be written as JSON'
      throw new TypeError(`${problem}: ${messageOf(err)}`)
    }
    // This tells usher which call, and so which client, the request belongs to.
    params._meta = { ...params._meta, 'usher/call': this.id }
    const answer = new Promise(resolve => {
      asks.set(id, resolve)
      this.stopAsking = resolve
    })
    send({ id, method: String(method), params })
    const { error, result } = (await answer) ?? {}
    asks.delete(id)
    if (error) throw new Error(error.message)
    return result
  }

  progress({ progress, total, message }) {
    if (this.token === undefined || !Number.isFinite(progress)) return
    const params = { progressToken: this.token, progress }
    if (Number.isFinite(total)) params.total = total
    if (message) params.message = String(message)
    send({ method: 'notifications/progress', params })
  }

  message({ log: data, level }) {
    try {
      data = JSON.parse(toJSON(data) ?? 'null')
    } catch {
      data = inspect(data)
    }
    const params = {
      level: LEVELS.includes(level) ? level : 'info',
      logger: name,
      data,
      _meta: { 'usher/call': this.id },
    }
    send({ method: 'notifications/message', params })
  }
}

// hasOnly reports whether value is an object with the key, and with no other keys than
// the optional ones.
function hasOnly(value, key, ...optional) {
  if (kind(value) !== 'object' || !Object.hasOwn(value, key)) return false
  return Object.keys(value).every(k => k === key || optional.includes(k))
}

// ---- Results, as JSON text, so that a large one is encoded only once

function failure(message) {
  return stringify({ content: [{ type: 'text', text: message }], isError: true })
}

// result returns the answer to a call that returned value.
function result(value) {
  try {
    return `{"_meta":{"usher/value":${toJSON(value) ?? 'null'}}}`
  } catch (err) {
    const why = /circular/.test(err.message) ? 'it contains itself' : err.message
    return failure(`the result can't be written as JSON: ${why}`)
  }
}

// toJSON does what JSON.stringify does, but throws for values that JSON.stringify drops
// or changes.
function toJSON(value) {
  return stringify(value, (key, v) => {
    const type = typeof v
    let what = ''
    if (type === 'number' && !Number.isFinite(v)) what = String(v)
    if (['bigint', 'function', 'symbol'].includes(type)) what = `a ${type}`
    if (v instanceof Map || v instanceof Set) what = `a ${v.constructor.name}`
    if (what) throw new TypeError(`${key === '' ? 'it' : stringify(key)} is ${what}`)
    return v
  })
}

// messageOf returns the message of a thrown value, which may be anything.
function messageOf(err) {
  try {
    let text = err
    if (typeof err?.message === 'string') text = err.message || err.name
    else if (typeof err !== 'string') text = toJSON(err) ?? String(err)
    return String(text || 'the method failed without a message')
  } catch {
    return 'the method failed with something that has no text'
  }
}

// stackOf returns a thrown value with its stack, for the log. It leaves out the calls of
// this file and of Node.
function stackOf(err) {
  try {
    return String(err?.stack ?? inspect(err)).replace(/\n +at[^\n]*(shim\.mjs|[ (]node:).*/g, '')
  } catch {
    return messageOf(err)
  }
}

function kind(value) {
  if (value === null) return 'null'
  return Array.isArray(value) ? 'array' : typeof value
}

// ---- Loading the file

// load runs the file and returns its methods by name.
async function load() {
  const typed = base.endsWith('ts')
  if (!module.register) refuse(`usher's modules need Node.js 20.6 or newer`)
  const strips = process.features.typescript // how Node itself does it, or false
  if (typed && !strips && !module.stripTypeScriptTypes) {
    refuse('TypeScript needs Node.js 22.13 or newer')
  }

  const source = new Source(text)
  safely(() => source.read())
  const type = /\.m[jt]s$/.test(base) ? 'module' : packageType(path.dirname(file))
  const isModule = type === 'module' || (type !== 'commonjs' && source.isModule)
  const url = pathToFileURL(file).href
  const format = isModule ? 'module' : 'commonjs'
  // Older versions of Node need help with types, or with export in a .js file.
  if (typed ? !strips : isModule && type !== 'module') addLoadHook({ url, format, typed })
  const loaded = await import(url)
  about = source.about
  return findMethods(loaded, isModule, source)
}

// safely returns the result of f, or logs that it failed. If the source can't be read,
// because it's nested too deeply, say, the methods only lose their documentation.
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

// packageType returns the type in the package.json that Node would use.
function packageType(dir) {
  try {
    return JSON.parse(fs.readFileSync(path.join(dir, 'package.json'), 'utf8')).type
  } catch (err) {
    const parent = path.dirname(dir)
    if (err.code !== 'ENOENT' || parent === dir) return undefined
    return packageType(parent)
  }
}

// addLoadHook makes Node load the main file in a format and, if that file is typed, strip the
// types of all files.
function addLoadHook(main) {
  if (module.registerHooks) {
    module.registerHooks({ load: (...args) => loadHook(main, ...args) })
    return
  }
  // Older versions run hooks in another thread, which gets the source of the hook.
  const hook = `import fs from 'node:fs'
    import module from 'node:module'
    ${loadHook}
    export const load = async (...args) => loadHook(${stringify(main)}, ...args)`
  module.register('data:text/javascript,' + encodeURIComponent(hook))
}

function loadHook(main, url, context, next) {
  const format = url === main.url ? main.format : context.format
  if (!main.typed || !/^file:.*[.][mc]?ts$/.test(url)) return next(url, { ...context, format })
  const source = module.stripTypeScriptTypes(fs.readFileSync(new URL(url), 'utf8'))
  const usual = url.endsWith('.cts') ? 'commonjs' : 'module'
  return { format: format ?? usual, source, shortCircuit: true }
}

// loadFailure returns why the file could not be loaded, on one line that begins with
// the file and the line number, as those of compilers do.
function loadFailure(err) {
  const stack = String(err?.stack ?? '')
  // Before version 22.18, Node draws the place of an error in types.
  const message = messageOf(err).split('\n')[0].replace(/^ +x /, '')
  const drawn = /,-\[(\d+):/.exec(stack)?.[1]
  let line = placeIn(stack, file) ?? placeIn(stack, pathToFileURL(file).href) ?? drawn
  let elsewhere = ''
  // The stack of a syntax error begins with the broken file, here an imported one.
  const imported = /^(?:file:\/\/)?(\/.*|[A-Z]:.*):(\d+)\n/.exec(stack)
  if (imported && path.resolve(imported[1]) !== file) {
    elsewhere = ` (${path.basename(imported[1])}:${imported[2]})`
  }
  if (/MODULE_NOT_FOUND$/.test(err?.code)) {
    const [, wanted] = /'(?:[^']*[/\\])?([^']+)'/.exec(message) ?? []
    line ??= text.split('\n').findIndex(l => l.includes(wanted)) + 1
  }
  if (!line && err instanceof SyntaxError) {
    line = syntaxErrorLine()
    if (!line) elsewhere ||= ' (in a file that it imports)'
  }
  if (message.endsWith('strip-only mode')) {
    elsewhere = ' (Node only removes types: use a union of strings, or plain fields)'
  }
  const label = err instanceof Error ? `${err.name}: ` : ''
  return `${base}${line ? ':' + line : ''}: ${label}${message}${elsewhere}`
}

// syntaxErrorLine asks another Node for the line of a syntax error in the file. That
// Node runs nothing of the file. The error itself doesn't contain the line.
function syntaxErrorLine() {
  try {
    const input = base.endsWith('ts') ? module.stripTypeScriptTypes(text) : text
    const args = ['--no-warnings', '--input-type=module', '--check']
    const checked = spawnSync(process.execPath, args, { input, encoding: 'utf8' })
    return placeIn(checked.stderr, '[stdin]')
  } catch {
    return undefined
  }
}

// placeIn returns the number after the first "place:" in text.
function placeIn(text, place) {
  const [, rest] = text.split(place + ':', 2)
  return /^\d+/.exec(rest)?.[0]
}

// ---- Finding the methods

// findMethods returns the methods that the module exports, by name, in the order of the
// source.
function findMethods(loaded, isModule, source) {
  const found = new Map()

  function add(name, run, holder, entry) {
    if (typeof run !== 'function' || isClass(run) || found.has(name)) return
    if (name === '' || name.startsWith('_') || entry?.hidden) return
    if (run.length > 1) addPositional(name)
    const known = entry && source.resolve(entry)
    const plain = { name, inputSchema: { type: 'object' } }
    const tool = safely(() => source.tool(name, known)) ?? plain
    found.set(name, { at: known?.at ?? Number.MAX_VALUE, run, holder, tool })
  }

  // addWhole adds the methods of a value that is exported as a whole: a class, an
  // object with functions, or a function.
  function addWhole(whole, entry) {
    const { members, doc } = entry ? source.resolve(entry) : {}
    if (isClass(whole)) {
      const object = new whole()
      const properties = Object.getOwnPropertyDescriptors(whole.prototype)
      delete properties.constructor
      for (const [name, { value }] of Object.entries(properties)) {
        add(name, value, object, members?.get(name))
      }
      about ||= doc ?? ''
    } else if (typeof whole === 'function') {
      if (whole.name && whole.name !== 'default') {
        add(whole.name, whole, undefined, entry)
      } else {
        problems.add('the default export is a function without a name: give it one')
      }
    } else if (kind(whole) === 'object') {
      for (const name of Object.keys(whole)) {
        add(name, whole[name], whole, members?.get(name) ?? source.declaration(name))
      }
    }
  }

  if (isModule) {
    const { default: whole, ...named } = loaded
    for (const [name, value] of Object.entries(named)) {
      add(name, value, undefined, source.declaration(name))
    }
    addWhole(whole, source.exported.get('default'))
  } else {
    addWhole(loaded.default, source.exported.get('module.exports'))
  }
  return new Map([...found].sort(([, a], [, b]) => a.at - b.at))
}

// addPositional adds the problem of a function that can't work as a method.
function addPositional(name) {
  problems.add(`${name}: a method gets one object: declare ${name}({ … })`)
}

function isClass(f) {
  return typeof f === 'function' && /^class\b/.test(Function.prototype.toString.call(f))
}

// ---- Reading the source

const MISSING = Symbol('marks the schema of a type that includes undefined')
const MODIFIER = /^(static|async|get|set|public|private|protected|override|\*)$/
const PLAIN_TYPE = /^(string|number|boolean|object|null)$/
const TYPE_OPERATOR = /^(keyof|typeof|unique|infer|asserts|abstract|new)$/
const DIRECTIVE = /^\/[/*]+\s*(eslint|@ts-|prettier-|biome-|<reference)/
const BEFORE_REGEX =
  /^(return|typeof|case|in|of|delete|void|throw|new|do|else|yield|await|instanceof|default)$/
const REGEX = /\/(?:[^\\/[\n]|\\.|\[(?:[^\\\]\n]|\\.)*\])+\/\w*/y
// TOKENS matches tokens other than strings, templates and regular expressions, by kind.
const TOKENS = {
  number: /\.?\d(?:[eE][+-]|[\w.])*/y,
  name: /[\p{ID_Start}$_#\\@][\p{ID_Continue}$\u200c\u200d\\]*/uy,
  mark: /=>|\.\.\.|\?\.(?!\d)|\+\+|--|[=!]==?|[^]/y,
}
// QUOTED matches the rest of a string or template, by its quote.
const QUOTED = {
  "'": /(?:[^\\'\n]+|\\[^])*'?/y,
  '"': /(?:[^\\"\n]+|\\[^])*"?/y,
  '`': /(?:[^\\`$]+|\\[^]|\$(?!\{))*`?/y,
}
const BRACKETS = { ')': '(', ']': '[', '}': '{' }

// A Source is a text of JavaScript or TypeScript as tokens, with what can be told from
// them. Invalid code yields less, and never an error.
class Source {
  // Objects with kind (number, name, mark, string, template, regex), text, start, end.
  tokens = []
  // The index of the closing bracket, by that of the opening one.
  close = []
  // Lists of comments, by the index of the token that follows.
  comments = new Map()
  // Aliases and interfaces by name: at, doc, generic, extends.
  types = new Map()
  // Functions, classes and values by name: at, doc; params, members or alias.
  local = new Map()
  exported = new Map()
  isModule = false
  about = ''

  constructor(text) {
    this.text = text
    this.scan(text.startsWith('#!') ? this.find('\n', 0) : 0)
  }

  // scan splits the text after a position into tokens. Between ${ and }, a template
  // contains tokens in brackets like any other.
  scan(from) {
    this.at = from
    this.unclosed = []
    while (this.at < this.text.length) this.scanToken()
    for (const open of this.unclosed) this.close[open] = this.tokens.length
  }

  scanToken() {
    const { at, close, text, tokens, unclosed } = this
    const char = text[at]
    const pair = text.slice(at, at + 2)
    if (/\s/.test(char)) {
      this.at++
    } else if (pair === '//') {
      this.addComment(this.find('\n', at))
    } else if (pair === '/*') {
      this.addComment(this.find('*/', at + 2) + 2)
    } else if (QUOTED[char]) {
      this.addQuoted(char, at + 1)
    } else if (char === '}' && tokens[unclosed.at(-1)]?.text === '${') {
      close[unclosed.pop()] = tokens.length
      this.addToken('mark', at + 1)
      this.addQuoted('`', at + 1)
    } else if (char === '/' && this.regexMayStart() && endOf(REGEX, text, at)) {
      this.addToken('regex', REGEX.lastIndex)
    } else {
      if ('([{'.includes(char)) unclosed.push(tokens.length)
      if (BRACKETS[char]) {
        // Brackets between the two were never closed.
        const opening = unclosed.findLastIndex(o => tokens[o].text === BRACKETS[char])
        const ended = opening < 0 ? [] : unclosed.splice(opening)
        for (const open of ended) close[open] = tokens.length
      }
      const kind = Object.keys(TOKENS).find(kind => endOf(TOKENS[kind], text, at))
      this.addToken(kind, TOKENS[kind].lastIndex)
    }
  }

  // addToken adds the token from this.at to end.
  addToken(kind, end) {
    const start = this.at
    this.tokens.push({ kind, text: this.text.slice(start, end), start, end })
    this.at = end
  }

  addComment(end) {
    const start = this.at
    const next = this.tokens.length
    if (!this.comments.has(next)) this.comments.set(next, [])
    const text = this.text.slice(start, end).trimEnd()
    this.comments.get(next).push({ text, start, end })
    this.at = end
  }

  // addQuoted adds a string, or the part of a template up to ${.
  addQuoted(quote, from) {
    const end = endOf(QUOTED[quote], this.text, from)
    this.addToken(quote === '`' ? 'template' : 'string', end)
    if (quote === '`' && this.text.startsWith('${', end)) {
      this.unclosed.push(this.tokens.length)
      this.addToken('mark', end + 2)
    }
  }

  // regexMayStart reports whether a / at this point starts a regular expression. If
  // not, it divides.
  regexMayStart() {
    const last = this.tokens.at(-1)
    const before = this.tokens.at(-2)
    if (!last) return true
    if (last.kind === 'name') {
      return BEFORE_REGEX.test(last.text) && before?.text !== '.'
    }
    if (last.kind !== 'mark' || last.text === ']') return false
    if (last.text === ')') {
      const open = this.close.lastIndexOf(this.tokens.length - 1)
      return /^(if|while|for)$/.test(this.tokens[open - 1]?.text)
    }
    if (last.text === '}') return this.text.slice(last.end, this.at).includes('\n')
    // In a++ / b, and in a! / b of TypeScript, it divides.
    const postfix = /^(\+\+|--|!)$/.test(last.text)
    return !postfix || !(before?.kind === 'name' || before?.text === ')')
  }

  find(what, from) {
    const at = this.text.indexOf(what, from)
    return at < 0 ? this.text.length : at
  }

  is(i, ...texts) {
    return this.tokens[i]?.kind !== 'string' && texts.includes(this.tokens[i]?.text)
  }

  isName(i) {
    return this.tokens[i]?.kind === 'name'
  }

  // skip returns the index after a token, or after the bracket that closes it.
  skip(i) {
    return (this.close[i] ?? i) + 1
  }

  // skipAngles returns the index after the type parameters at i, i if there are none.
  skipAngles(i) {
    let depth = 0
    for (let k = i; this.is(i, '<') && k < this.tokens.length; k = this.skip(k)) {
      if (this.is(k, ';')) break
      if (this.is(k, '<')) depth++
      if (this.is(k, '>')) depth--
      if (depth === 0) return k + 1
    }
    return i
  }

  // newLine reports whether a token is the first on its line.
  newLine(i) {
    const { start } = this.tokens[i] ?? {}
    return this.text.slice(this.tokens[i - 1]?.end ?? 0, start).includes('\n')
  }

  // key returns the name of a property, undefined if the token is none.
  key(i) {
    const { kind, text } = this.tokens[i] ?? {}
    if (kind === 'string') return text.slice(1, -1).replace(/\\(.)/g, '$1')
    return kind === 'name' || kind === 'number' ? text : undefined
  }

  // ---- Comments

  // docAbove returns the text of the comment directly above a token: /** ... */, or
  // lines of //. It ignores directives to linters and compilers.
  docAbove(i) {
    const lines = []
    let below = this.tokens[i]?.start
    for (const { text, start, end } of (this.comments.get(i) ?? []).toReversed()) {
      const gap = this.text.slice(end, below)
      const before = this.text.slice(this.text.lastIndexOf('\n', start) + 1, start)
      if (/\n\s*\n/.test(gap) || (gap.includes('\n') && before.trim() !== '')) break
      below = start
      if (DIRECTIVE.test(text)) continue
      const block = text.startsWith('/*')
      if (block && (lines.length > 0 || !text.startsWith('/**'))) break
      lines.unshift(clean(text))
      if (block) break
    }
    return lines.join('\n').trim()
  }

  // lineComment returns the text of the comment at the end of a line, before or after
  // the separator at i.
  lineComment(i) {
    const { end } = this.tokens[i - 1] ?? {}
    for (const k of this.is(i, ';', ',') ? [i, i + 1] : [i]) {
      const last = !this.tokens[k] || this.is(k, ';', ',', '}', ')')
      for (const comment of this.comments.get(k) ?? []) {
        const sameLine = !this.text.slice(end, comment.start).includes('\n')
        const after = this.text.slice(comment.end, this.tokens[k]?.start)
        if (sameLine && (last || after.includes('\n'))) return clean(comment.text)
      }
    }
    return ''
  }

  // ---- Declarations

  // read finds what the top level of the file declares and exports.
  read() {
    let i = 0
    while (i < this.tokens.length) {
      const next = this.is(i - 1, '.', '?.') ? i : this.statement(i)
      i = next > i ? next : this.skip(i)
    }
    this.about = this.firstComment()
  }

  // firstComment returns the comment at the beginning of the file, unless it documents
  // a function.
  firstComment() {
    let first = 0 // the first token after 'use strict'
    while (this.tokens[first]?.kind === 'string' || this.is(first, ';')) first++
    const lines = []
    let end
    const comments = [...this.comments].filter(([next]) => next <= first)
    for (const comment of comments.flatMap(([, list]) => list)) {
      if (DIRECTIVE.test(comment.text)) continue
      const apart = /\n\s*\n/.test(this.text.slice(end, comment.start))
      if (lines.length > 0 && apart) break
      lines.push(clean(comment.text))
      if (comment.text.startsWith('/*')) break
      end = comment.end
    }
    const text = lines.join('\n').trim()
    const declared = [...this.local.values(), ...this.exported.values()]
    const isFunction = declared.some(entry => entry.at === first && entry.params)
    return isFunction && this.docAbove(first) === text ? '' : text
  }

  // statement reads the declaration at a token, if there is one, and returns the index
  // at which reading continues.
  statement(start) {
    const entry = { at: start, doc: this.docAbove(start) }
    const exporting = this.is(start, 'export')
    let i = exporting ? start + 1 : start
    const maps = exporting ? [this.exported, this.local] : [this.local]
    const declare = (name, targets) => {
      for (const map of targets) {
        if (name && !map.has(name)) map.set(name, entry)
      }
    }
    const importing = this.is(i, 'import') && !this.is(i + 1, '(', '.')
    if (exporting || importing) this.isModule = true
    if (exporting && this.is(i, '{')) return this.exportList(i)
    const whole = exporting && this.is(i, 'default')
    if (whole) i++
    while (this.is(i, 'declare', 'abstract') && this.isName(i + 1)) i++

    const keyword = this.is(i, 'async') ? i + 1 : i
    let next
    if (this.is(keyword, 'function', 'class')) {
      const at = this.is(keyword + 1, '*') ? keyword + 2 : keyword + 1
      next = this.value(i, entry)
      if (whole) this.exported.set('default', entry)
      if (this.isName(at) && !this.is(at, 'extends')) {
        declare(this.tokens[at].text, whole ? [this.local] : maps)
      }
    } else if (whole) {
      next = this.value(i, entry)
      declare('default', [this.exported])
    } else if (this.is(i, 'const', 'let', 'var') && this.isName(i + 1)) {
      next = this.is(i + 2, ':') ? this.skipType(i + 3) : i + 2
      if (this.is(next, '=')) next = this.value(next + 1, entry)
      declare(this.tokens[i + 1].text, maps)
    } else if (this.is(i, 'type', 'interface') && this.isName(i + 1)) {
      next = this.typeDeclaration(i, entry.doc)
    } else {
      const [at, name] = this.commonExport(i)
      if (!this.is(at, '=')) return this.skip(i)
      next = this.value(at + 1, entry)
      declare(name, [this.exported])
    }
    return next
  }

  // commonExport reads exports.NAME, module.exports.NAME or module.exports. It returns
  // the index after it and the name.
  commonExport(i) {
    if (this.is(i, 'module') && this.is(i + 1, '.')) i += 2
    if (!this.is(i, 'exports')) return [-1]
    if (this.is(i + 1, '.')) return [i + 3, this.key(i + 2)]
    return [i + 1, 'module.exports']
  }

  exportList(open) {
    const end = this.close[open]
    for (let i = open + 1; i < end && !this.is(end + 1, 'from'); i++) {
      const name = this.key(this.is(i + 1, 'as') ? i + 2 : i)
      this.exported.set(name, { at: i, doc: '', alias: this.key(i) })
      while (i < end && !this.is(i, ',')) i++
    }
    return end + 1
  }

  typeDeclaration(i, doc) {
    const isAlias = this.is(i, 'type')
    const after = this.skipAngles(i + 2)
    const at = isAlias ? after + 1 : after
    if (isAlias && !this.is(after, '=')) return i + 1
    const generic = after > i + 2
    const entry = { at, doc: flat(doc), generic, extends: !isAlias }
    this.types.set(this.tokens[i + 1].text, entry)
    return isAlias ? this.skipType(at) : this.skip(this.bodyOf(at))
  }

  // bodyOf returns the index of the { of a class or an interface.
  bodyOf(i) {
    while (i < this.tokens.length && !this.is(i, '{')) {
      i = Math.max(this.skipAngles(i), this.skip(i))
    }
    return i
  }

  // value reads an assigned value into entry: a function, a class, an object, or the
  // name of one. It returns an index up to which reading is done.
  value(start, entry) {
    if (this.is(start, 'class', '{')) {
      const open = this.bodyOf(start)
      entry.members = this.members(open, this.is(start, 'class'))
      return this.skip(open)
    }
    let i = this.is(start, 'async') ? start + 1 : start
    const isFunction = this.is(i, 'function')
    if (isFunction) while (i < this.tokens.length && !this.is(i, '(', '<')) i++
    const paren = this.skipAngles(i)
    const after = this.skip(paren)
    if (this.is(paren, '(') && (isFunction || this.is(after, '=>', ':'))) {
      entry.params = [paren + 1, after - 1]
      return after
    }
    const next = start + 1
    const isLast = next >= this.tokens.length || this.is(next, ';', ',', '}')
    if (this.isName(i) && this.is(i + 1, '=>')) {
      entry.params = [i, i + 1]
    } else if (this.isName(start) && (isLast || this.newLine(next))) {
      entry.alias = this.key(start)
    }
    return start
  }

  // members returns the members of a class or an object by name. A method is a name
  // that is followed by parentheses, and in a class by a body or a type after them.
  members(open, isClass) {
    const list = new Map()
    const end = Math.min(this.close[open] ?? 0, this.tokens.length)
    let i = open + 1
    while (i < end) {
      const entry = { at: i, doc: this.docAbove(i) }
      while (
        MODIFIER.test(this.tokens[i]?.text) &&
        !this.is(i + 1, '(', ',', ':', '=', '<', '}')
      ) {
        if (this.is(i, 'private', 'protected')) entry.hidden = true
        i++
      }
      const name = this.key(i)
      const paren = this.skipAngles(i + 1)
      const after = this.skip(paren)
      if (this.is(paren, '(') && (!isClass || this.is(after, '{', ':', ';'))) {
        entry.params = [paren + 1, after - 1]
      } else if (!isClass && this.is(i + 1, ':')) {
        this.value(i + 2, entry)
      } else if (!isClass) {
        entry.alias = name
      }
      const counts = name !== undefined && (!isClass || entry.params)
      if (counts && !list.has(name)) list.set(name, entry)

      i = this.skip(i)
      if (isClass && entry.params) {
        i = this.is(after, ':') ? this.skipType(after + 1) : after
      }
      while (!isClass && i < end && !this.is(i - 1, ',')) i = this.skip(i)
    }
    return list
  }

  declaration(name) {
    return this.exported.get(name) ?? this.local.get(name)
  }

  // resolve follows the names in entry to what was declared under them.
  resolve(entry) {
    for (let hops = 0; this.local.has(entry.alias) && hops < 8; hops++) {
      const next = this.local.get(entry.alias)
      entry = { ...next, doc: entry.doc || next.doc }
    }
    return entry
  }

  // ---- Tools and their schemas

  // tool returns the MCP definition of a method. usher takes tags out of the
  // description and applies them.
  tool(name, entry) {
    const lines = paramLines(entry?.doc ?? '')
    const { schema, param } = this.input(name, entry?.params, lines)
    // usher knows the members of the object that the method takes, and not what the
    // method calls it: "@param params.x" becomes "@param x".
    const kept = []
    for (const { line, before, rest, name } of lines) {
      if (param && name?.startsWith(param + '.')) {
        kept.push(before + rest.replace(param + '.', ''))
      } else if (!param || name !== param) {
        kept.push(line)
      }
    }
    const description = kept.join('\n').trim()
    return { name, ...(description && { description }), inputSchema: schema }
  }

  // input returns the schema of the object that a method takes, from the type and the
  // pattern of its first parameter, and the name of that parameter.
  input(name, params, lines) {
    if (!params) return { schema: { type: 'object' } }
    const [i, end] = params
    if (i >= end) return { schema: { type: 'object', properties: {} } }

    const fields = this.is(i, '{') ? this.pattern(i) : null
    const root = lines.find(line => line.name)
    let param = this.key(i)
    if (fields) param = root && !(root.name in fields) ? root.name.split('.')[0] : ''
    let at = this.skip(i)
    if (this.is(at, '?')) at++
    const typed = this.is(at, ':')

    this.begin()
    let schema = {}
    if (typed) schema = this.type(at + 1)
    else if (root?.type && root.name === param) schema = this.typeIn(root.type)
    schema = { ...this.written(schema) }
    if (schema.type !== 'object') {
      if (typeof schema.type === 'string') addPositional(name)
      schema = { type: 'object' }
    }
    delete schema.description // the tool has one
    if (fields) addFields(schema, fields, typed, lines)
    if (Object.keys(this.defs).length > 0) schema.$defs = this.defs
    return { schema: compact(schema), param }
  }

  // pattern returns the names that { a, b: c = 1 } takes out of an object, and whether
  // each has a default.
  pattern(open) {
    const fields = Object.create(null)
    const end = this.close[open]
    for (let i = open + 1; i < end; i++) {
      const key = this.key(i)
      let fallback = false
      for (; i < end && !this.is(i, ','); i = this.skip(i)) fallback ||= this.is(i, '=')
      if (key !== undefined) fields[key] = fallback
    }
    return fields
  }

  // ---- Types, from this.pos on. A type that can't be read has the schema {}.

  begin() {
    this.open = new Set() // types that are being written out
    this.recursive = new Set() // types that contain themselves
    this.defs = Object.create(null)
  }

  type(i) {
    this.pos = i
    return this.union()
  }

  // typeIn reads a type in a comment, which it appends to the file's text.
  typeIn(text) {
    const at = this.tokens.length
    const from = this.text.length
    this.text += '\n' + text
    this.scan(from)
    return this.type(at)
  }

  skipType(i) {
    this.begin()
    this.type(i)
    return this.pos
  }

  // written returns the definition that a schema refers to, or else the schema.
  written(schema) {
    if (!schema.$ref) return schema
    return this.defs[schema.$ref.slice('#/$defs/'.length)] ?? {}
  }

  // eat skips the token if it is one of texts, and reports whether it was.
  eat(...texts) {
    const found = this.is(this.pos, ...texts)
    if (found) this.pos++
    return found
  }

  // list reads items with a separator between them. One may precede the first item.
  list(separator, read) {
    const items = []
    this.eat(separator)
    do items.push(read())
    while (this.eat(separator))
    return items
  }

  union() {
    const parts = this.list('|', () => this.intersection())
    if (!this.is(this.pos, 'extends') || this.newLine(this.pos)) return joined(parts)
    while (this.eat('extends', '?', ':')) this.intersection() // a condition
    return {}
  }

  intersection() {
    const parts = this.list('&', () => this.postfix())
    return parts.length === 1 ? parts[0] : merged(parts.map(part => this.written(part)))
  }

  postfix() {
    let schema = this.primary()
    while (this.is(this.pos, '[') && !this.newLine(this.pos)) {
      const isArray = this.is(this.pos + 1, ']')
      schema = isArray ? { type: 'array', items: schema } : {}
      this.pos = this.skip(this.pos)
    }
    return schema
  }

  primary() {
    const start = this.pos
    const token = this.tokens[start]
    if (!token) return {}
    this.pos++
    switch (token.kind) {
      case 'string':
        return { type: 'string', enum: [this.key(start)] }
      case 'number':
        return { type: 'number', enum: [Number(token.text)] }
      case 'name':
        return this.word(token.text)
      case 'template':
        while (this.is(this.pos, '${') || this.tokens[this.pos]?.kind === 'template') {
          this.pos = this.skip(this.pos)
        }
        return { type: 'string' }
    }
    const paren = this.skipAngles(start)
    const after = this.skip(paren)
    if (this.is(paren, '(') && this.is(after, '=>')) {
      this.type(after + 1) // what the function returns
      return {}
    }
    if (this.is(start, '-')) {
      return { type: 'number', enum: [-Number(this.tokens[this.pos++]?.text)] }
    }
    if (this.is(start, '{')) return this.object(start)
    if (!this.is(start, '(', '[')) return {}
    const inner = this.is(start, '(') ? this.type(start + 1) : { type: 'array' }
    this.pos = this.skip(start)
    return inner
  }

  word(text) {
    if (PLAIN_TYPE.test(text)) return { type: text }
    if (/^(true|false)$/.test(text)) return { type: 'boolean', enum: [text === 'true'] }
    if (/^(undefined|void)$/.test(text)) return { [MISSING]: true }
    if (text === 'readonly') return this.postfix()
    if (TYPE_OPERATOR.test(text)) {
      this.postfix()
      return {}
    }
    while (this.eat('.')) text += '.' + this.tokens[this.pos++]?.text
    if (this.eat('is')) this.postfix()
    const after = this.skipAngles(this.pos)
    const args = this.eat('<') ? this.list(',', () => this.union()) : []
    this.pos = Math.max(this.pos, after)
    if (this.types.has(text)) return this.declared(text, this.types.get(text))
    switch (text) {
      case 'Array':
      case 'ReadonlyArray':
        return compact({ type: 'array', items: args[0] })
      case 'Record':
        return compact({ type: 'object', additionalProperties: args[1] })
      case 'Partial':
        return compact({ ...this.written(args[0] ?? {}), required: [] })
      case 'Readonly':
        return args[0] ?? {}
    }
    return {}
  }

  // declared returns the schema of a type that the file declares. A type that contains
  // itself becomes a definition, which is referred to. Every other type is written out.
  declared(name, { at, doc, generic, extends: mayExtend }) {
    const ref = { $ref: '#/$defs/' + name }
    if (this.open.has(name)) this.recursive.add(name)
    if (this.open.has(name) || this.defs[name]) return ref
    if (generic) return {}
    const back = this.pos
    this.open.add(name)
    let schema
    if (mayExtend) {
      this.pos = at
      const read = () => this.written(this.postfix())
      const bases = this.eat('extends') ? this.list(',', read) : []
      const known = bases.filter(base => base.properties)
      schema = merged([...known, this.object(this.pos)])
    } else {
      schema = this.type(at)
    }
    this.open.delete(name)
    this.pos = back
    if (doc) schema = compact({ ...schema, description: doc })
    if (!this.recursive.has(name)) return schema
    this.defs[name] = schema
    return ref
  }

  // object reads { a: string; b?: number }.
  object(open) {
    const end = Math.min(this.close[open] ?? 0, this.tokens.length)
    const properties = Object.create(null)
    const required = []
    let rest // the schema of [key: string]: T
    this.pos = open + 1
    while (this.pos < end) {
      if (this.eat(';', ',')) continue
      const start = this.pos
      if (this.is(start, 'readonly') && !this.is(start + 1, ':', '?', '(')) this.pos++
      const index = this.is(this.pos, '[') && this.is(this.pos + 2, ':')
      const key = this.key(this.pos)
      this.pos = this.skip(this.pos)
      const optional = this.eat('?')
      const paren = this.skipAngles(this.pos)
      const isMethod = this.is(paren, '(')
      if (isMethod) this.pos = this.skip(paren)
      const part = this.eat(':') ? this.union() : {}
      if (index) rest = part
      if (key === undefined || isMethod) continue
      const doc = flat(this.docAbove(start) || this.lineComment(this.pos))
      properties[key] = compact({ ...part, description: doc || part.description })
      if (!optional && !part[MISSING]) required.push(key)
    }
    this.pos = end + 1
    const schema = { type: 'object', properties, required, additionalProperties: rest }
    if (rest && Object.keys(properties).length === 0) delete schema.properties
    return compact(schema)
  }
}

// endOf returns where the match of a sticky pattern at a position ends, 0 for no match.
function endOf(pattern, text, at) {
  pattern.lastIndex = at
  return pattern.test(text) ? pattern.lastIndex : 0
}

// addFields adds the fields that a pattern takes out of an object to its schema.
function addFields(schema, fields, typed, lines) {
  const described = schema.properties
  schema.properties ??= Object.create(null)
  schema.required ??= described || typed ? [] : Object.keys(fields)
  for (const [key, fallback] of Object.entries(fields)) {
    if (!described) schema.properties[key] = {}
    const isOptional = line => line.optional && line.name.split('.').at(-1) === key
    if (fallback || (!described && lines.some(isOptional))) {
      schema.required = schema.required.filter(other => other !== key)
    }
  }
}

// compact returns a schema without the members that say nothing.
function compact(schema) {
  const kept = { ...schema }
  for (const key of Object.keys(kept)) {
    if (kept[key] === undefined) delete kept[key]
  }
  if (kept.required?.length === 0) delete kept.required
  return kept
}

// joined returns the union of schemas.
function joined(all) {
  const missing = all.some(s => s[MISSING]) ? { [MISSING]: true } : {}
  const parts = all.filter(s => !s[MISSING] || Object.keys(s).length > 0)
  const isUnknown = s => !s.type && !s.$ref && !s.anyOf
  if (parts.length === 0 || parts.some(isUnknown)) return missing
  if (parts.length === 1) return { ...parts[0], ...missing }
  const values = parts.filter(s => s.type !== 'null')
  if (values.length === 1 && values[0].type) {
    const schema = { ...values[0], ...missing }
    schema.type = [schema.type, 'null'].flat()
    if (schema.enum) schema.enum = [...schema.enum, null]
    return schema
  }
  const isSimple = s => Object.keys(s).every(key => key === 'type' || key === 'enum')
  if (!parts.every(isSimple)) return { anyOf: parts, ...missing }
  const types = [...new Set(parts.flatMap(s => s.type))]
  const type = types.length === 1 ? types[0] : types
  if (!parts.every(s => s.enum || s.type === 'null')) return { type, ...missing }
  const choices = new Set(parts.flatMap(s => s.enum ?? [null]))
  return { type, enum: [...choices], ...missing }
}

// merged returns the intersection of schemas: for objects, all their properties.
function merged(parts) {
  const plain = parts.find(s => s.type && s.type !== 'object')
  if (plain) return plain // such as string & { brand: ... }
  if (parts.length === 1) return parts[0]
  const objects = parts.filter(s => s.properties)
  if (objects.length === 0) return {}
  const properties = Object.create(null)
  for (const object of objects) Object.assign(properties, object.properties)
  const required = [...new Set(objects.flatMap(s => s.required ?? []))]
  return compact({ type: 'object', properties, required })
}

// clean returns the text of a comment without its marks.
function clean(text) {
  if (text.startsWith('//')) return text.replace(/^\/\/+ ?/, '')
  const inner = text.replace(/^\/\*[*!]*/, '').replace(/\*+\/$/, '')
  const lines = inner.split('\n').map(line => line.replace(/^\s*\* ?/, '').trimEnd())
  return lines.join('\n').trim()
}

function flat(text) {
  return text.replace(/\s+/g, ' ').trim()
}

// PARAM matches a line with @param: what precedes the name, with the type in braces,
// and the rest, with the name.
const PARAM =
  /^(\s*@param\s+(?:\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\s*)?)(\[?\s*([^\s\]=]*).*)$/

// paramLines splits a comment into lines, and lines with @param into their parts.
function paramLines(doc) {
  return doc.split('\n').map(line => {
    const [, before, type, rest, name] = PARAM.exec(line) ?? []
    const optional = rest?.startsWith('[')
    return { line, before, type, rest, name, optional }
  })
}

// ---- The start, after everything has been declared

const loading = load().then(
  found => {
    methods = found
    waiting.forEach(receive)
  },
  err => {
    log(loadFailure(err))
    process.exit(1)
  },
)

pipes.input.on('data', onData)
pipes.input.on('error', onEnd).on('close', onEnd).on('end', onEnd)
