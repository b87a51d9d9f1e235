// The Node.js runtime of usher: it serves the functions of one NAME.usher.js, .mjs, .ts
// or .mts as MCP tools over stdin and stdout, one JSON-RPC message per line.
//
//     node shim.mjs FILE
//
// usher checks the arguments of a call before it sends them, and makes the tool result
// from the returned value.
//
// In reading order: the pipes, the protocol, calls, results, loading the file, finding
// its methods, and reading their comments and types. V8 has parsed the file by then: the
// text of a function is a slice of it.

import { AsyncLocalStorage } from 'node:async_hooks'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import module from 'node:module'
import net from 'node:net'
import path from 'node:path'
import { Readable } from 'node:stream'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { inspect } from 'node:util'

const { writeSync } = fs // the module may replace it
const { stringify } = JSON
const file = path.resolve(process.argv[2])
const base = path.basename(file)
const name = base.split('.usher')[0]
const text = fs.readFileSync(file, 'utf8').replace('\uFEFF', '')
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
let methods // by name
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

// onEnd ends the process, as nobody waits for an answer any more. It lets the calls begin
// whose lines came just before: a person may have piped them in.
function onEnd() {
  setImmediate(() => process.exit(0))
}

function receive(line) {
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
    reportFiles()
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
    reportFiles()
    write(`{"jsonrpc":"2.0","id":${stringify(this.id)},"result":${result}}`)
  }

  // drive runs a generator to its end and returns its result. The generator yields
  // progress, log messages, and requests to the client, whose answers it gets back.
  async drive(steps) {
    let resume = () => steps.next()
    for (;;) {
      const { done, value } = await resume()
      if (done) return value
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
        let given = kind(value)
        if (given === 'object') given = `{ ${Object.keys(value).join(', ')} }`
        const known = '{ ask, params }, { progress, total, message } or { log, level }'
        const err = new TypeError(`unknown yield of ${given}: want ${known}, and return the result`)
        resume = () => steps.throw(err)
      }
    }
  }

  // ask sends a request to the client, and waits for the answer or the end of the call.
  async ask({ ask: method, params = {} }) {
    if (kind(params) !== 'object') throw new TypeError('ask: params must be an object')
    const id = `ask-${++asked}`
    // This tells usher which call, and so which client, the request belongs to.
    const _meta = { ...params._meta, 'usher/call': this.id }
    write(toJSON({ jsonrpc: '2.0', id, method, params: { ...params, _meta } }))
    const answer = new Promise(resolve => {
      asks.set(id, resolve)
      this.stopAsking = resolve
    })
    const { error, result } = (await answer) ?? {}
    asks.delete(id)
    if (error) throw new Error(error.message)
    return result
  }

  progress({ progress, total, message }) {
    if (this.token === undefined || !Number.isFinite(progress)) return
    const params = { progressToken: this.token, progress, total, message }
    send({ method: 'notifications/progress', params })
  }

  message({ log: data, level = 'info' }) {
    try {
      data = JSON.parse(toJSON(data) ?? 'null')
    } catch {
      data = inspect(data)
    }
    const params = {
      level,
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
    const kind = isBytes(value) ? 'bytes' : 'value'
    return `{"_meta":{"usher/${kind}":${toJSON(value) ?? 'null'}}}`
  } catch (err) {
    const why = /circular/.test(err.message) ? 'it contains itself' : err.message
    return failure(`the result can't be written as JSON: ${why}`)
  }
}

// toJSON does what JSON.stringify does, but writes bytes as base64, and throws for other
// values that JSON.stringify drops or changes.
function toJSON(value) {
  return stringify(value, function (key, v) {
    if (isBytes(this[key])) return Buffer.from(this[key]).toString('base64')
    const type = typeof v
    let what = ''
    if (type === 'number' && !Number.isFinite(v)) what = String(v)
    if (['bigint', 'function', 'symbol'].includes(type)) what = `a ${type}`
    if (v instanceof Map || v instanceof Set) what = `a ${v.constructor.name}`
    if (what) throw new TypeError(`${key === '' ? 'it' : stringify(key)} is ${what}`)
    return v
  })
}

function isBytes(value) {
  return value instanceof Uint8Array || value instanceof ArrayBuffer
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

// stackOf returns a thrown value with its stack and its causes, for the log. It leaves out
// the calls of this file and of Node.
function stackOf(err) {
  try {
    const stack = err?.cause ? undefined : err?.stack
    return String(stack ?? inspect(err)).replace(/\n +at[^\n]*(shim\.mjs|[ (]node:).*/g, '')
  } catch {
    return messageOf(err)
  }
}

function kind(value) {
  if (value === null) return 'null'
  return Array.isArray(value) ? 'array' : typeof value
}

// ---- Loading the file

// files has the paths of files that the module has loaded, except packages, and that usher
// does not know yet.
const files = new Set()

// watchFiles collects in files what is imported or required from now on, once each. It
// needs Node.js 22.15.
function watchFiles() {
  const seen = new Set([pathToFileURL(file).href])
  module.registerHooks?.({
    load(url, context, next) {
      if (url.startsWith('file:') && !url.includes('/node_modules/') && !seen.has(url)) {
        seen.add(url)
        files.add(fileURLToPath(url))
      }
      return next(url, context)
    },
  })
}

// reportFiles tells usher about files.
function reportFiles() {
  if (files.size === 0) return
  send({ method: 'usher/parts', params: { paths: [...files] } })
  files.clear()
}

// load runs the file and returns its methods by name.
async function load() {
  const { require_module: recent, typescript } = process.features
  if (base.endsWith('ts') && !typescript) refuse('TypeScript needs Node.js 22.18 or newer')
  if (!recent) refuse('JavaScript needs Node.js 20.19 or newer, or 22.12')
  watchFiles()
  return findMethods(await import(pathToFileURL(file).href))
}

// refuse ends the process with one line for the user.
function refuse(need) {
  log(`${base}: ${need}; this is ${process.version}`)
  process.exit(1)
}

// loadFailure returns why the file could not be loaded, on one line that begins with
// the file and the line number, as those of compilers do.
function loadFailure(err) {
  const stack = String(err?.stack ?? '')
  const message = messageOf(err).split('\n')[0]
  let line = placeIn(stack, file) ?? placeIn(stack, pathToFileURL(file).href)
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
  const args = ['--no-warnings', '--input-type=module', '--check']
  const options = { input: withoutTypes(), encoding: 'utf8' }
  return placeIn(String(spawnSync(process.execPath, args, options).stderr), '[stdin]')
}

// placeIn returns the number after the first "place:" in text.
function placeIn(text, place) {
  const [, rest] = text.split(place + ':', 2)
  return /^\d+/.exec(rest)?.[0]
}

// ---- Finding the methods

// findMethods returns the methods that the module exports, by name, in the order of the
// source. The default export of a CommonJS module is module.exports.
function findMethods({ default: whole, 'module.exports': _, ...named }) {
  const source = new Source()
  const found = new Map()

  function add(name, run, holder, from) {
    if (typeof run !== 'function' || isClass(run)) return
    if (name.startsWith('_') || found.has(name)) return
    const place = source.locate(name, run, from)
    if (place.hidden) return
    const tool = source.tool(name, place)
    if (run.length > 1 || source.positional) {
      problems.add(`${name} is not offered: a method gets one object: declare ${name}({ … })`)
    } else {
      found.set(name, { run, holder, tool, ...place })
    }
  }

  let classDoc = ''
  if (isClass(whole)) {
    const object = new whole()
    const { at, doc } = source.locate(whole.name, whole)
    classDoc = doc
    const { constructor, ...members } = Object.getOwnPropertyDescriptors(whole.prototype)
    for (const name of Object.keys(members)) add(name, members[name].value, object, at)
  } else if (typeof whole === 'function') {
    if (whole.name && whole.name !== 'default') add(whole.name, whole)
    else problems.add('the default export is a function without a name: give it one')
  } else if (kind(whole) === 'object') {
    for (const name of Object.keys(whole)) add(name, whole[name], whole)
  }
  for (const name of Object.keys(named)) add(name, named[name])

  const sorted = [...found].sort(([, a], [, b]) => a.start - b.start)
  const first = source.firstComment()
  const ofMethod = sorted.some(([, method]) => method.doc === first)
  about = ofMethod || !first ? classDoc : first
  return new Map(sorted)
}

function isClass(f) {
  return typeof f === 'function' && /^class\b/.test(textOf(f))
}

// textOf returns the text of a function, which is a slice of its file without types.
function textOf(f) {
  return Function.prototype.toString.call(f)
}

// ---- Reading comments and types

const MISSING = Symbol('marks the schema of a type that includes undefined')
const PLAIN_TYPE = /^(string|number|boolean|object|null)$/
const DIRECTIVE = /^\/[/*]+\s*(eslint|@ts-|prettier-|biome-|<reference)/
const COMMENTS = /\s*(\/\*[^]*?\*\/|\/\/.*)/gy
// LINE_COMMENT matches the comment at the end of a line, or before a separator.
const LINE_COMMENT = /[^\S\n]*[;,]?[^\S\n]*(\/\/.*|\/\*.*?\*\/)[^\S\n]*(?=[;,})\n])/y
// TYPE_NAME matches the beginning of an alias or an interface, up to its name.
const TYPE_NAME =
  /(?:^|;)[ \t]*(?:export\s+)?(?:declare\s+)?(?:type|interface)\s+([\p{ID_Continue}$]+)/gmu
const SPACE = /(?:\s+|\/\/.*|\/\*[^]*?(?:\*\/|$))*/y
const NUMBER = /\.?\d[\w.]*/
const NAME = /[\p{ID_Continue}$]+/u
const STRING = /'(?:[^\\'\n]|\\[^])*'|"(?:[^\\"\n]|\\[^])*"/
const TEMPLATE = /`(?:[^\\`$]|\\[^]|\$(?!\{)|\$\{(?:'.*?'|".*?"|[^}])*\})*`/
// TOKEN matches one of these or a mark, and nothing at the end of the text.
const TOKEN = new RegExp(
  [NUMBER, NAME, STRING, TEMPLATE, /=>|\.\.\.|[^]|$/].map(kind => kind.source).join('|'),
  'uy',
)

// withoutTypes returns the file's text without types, as Node runs it.
function withoutTypes() {
  try {
    return base.endsWith('ts') ? module.stripTypeScriptTypes(text) : text
  } catch {
    return '' // An option makes Node transform the file.
  }
}

// A Source reads the comments and types of the file. From code that it can't read, it
// tells less, without an error.
class Source {
  text = text
  // The text without types. Node blanks them, so offsets are the same as in the text.
  js = withoutTypes()
  types = new Map() // aliases and interfaces by name: where the name ends, and the comment
  pos = 0 // where reading continues

  constructor() {
    for (const { 0: match, 1: name, index } of text.matchAll(TYPE_NAME)) {
      const at = index + match.length
      if (this.js.slice(at - name.length, at).trim() !== '') continue // not a type
      this.types.set(name, { at, doc: flat(this.docAbove(index)) })
    }
  }

  // ---- Functions and their comments

  // locate finds a function, whose text comes after an offset. It returns where its text
  // and its declaration begin, and what is known from these.
  locate(name, f, from) {
    const own = textOf(f)
    const first = this.js.indexOf(own, from)
    // Functions may have the same text. Then their names tell them apart.
    for (let at = first; at >= 0; at = this.js.indexOf(own, at + 1)) {
      const start = this.lineOf(at)
      const header = this.js.slice(start, at) + /^[^(=]*/.exec(own)[0]
      const words = header.match(/[\p{ID_Continue}$-]+/gu) ?? []
      if (words.includes(name) || words.includes(f.name)) return this.place(own, at, start)
    }
    // Another function has made this one. Its comment is where it gets its name.
    return this.place(own, first, this.assignment(name))
  }

  // place returns what locate does, for a function whose text begins at one offset, and
  // whose declaration at another. Both are -1 if they were not found.
  place(own, at, start) {
    const arrow = /^(?:async\s+)?(?=[\p{ID_Continue}$]+\s*=>)/u.exec(own)
    let params = at + (arrow ? arrow[0].length : own.indexOf('(') + 1)
    if (at < 0) params = undefined
    if (start < 0) return { at, params, doc: '', start: Number.MAX_VALUE }

    const hidden = /\b(private|protected)\s[\s\w]*$/.test(text.slice(start, Math.max(at, 0)))
    // What Node has blanked above a function may be an overload: it says what callers see.
    const end = this.js.slice(0, start).trimEnd().length
    const blanked = text.slice(end, start)
    if (/^\s*((export|default|async)\s+)*function\b/.test(blanked)) {
      start = end + blanked.search(/\S/)
      params = text.indexOf('(', start) + 1
    }
    return { at, params, hidden, start, doc: this.docAbove(start) }
  }

  // lineOf returns where the line with a declaration begins, or its part of this line. A
  // line that ends with one of =:( belongs to the next one.
  lineOf(at) {
    const before = this.js.slice(0, at)
    const ends = [...'\n;{},/'].map(mark => before.lastIndexOf(mark))
    const start = Math.max(...ends) + 1
    const above = before.slice(0, start).trimEnd()
    return /^[=:(]/.test(above.at(-1)) ? this.lineOf(above.length) : start
  }

  // assignment returns where a name gets its value, -1 if it's not found.
  assignment(name) {
    const escaped = name.replace(/[^\w]/g, '\\$&')
    const before = '(?:^|\\b(?:const|let|var)\\s|\\bexports\\.)[ \\t]*'
    const match = new RegExp(`${before}${escaped}\\s*[=:]`, 'm').exec(this.js)
    return match ? this.lineOf(match.index) : -1
  }

  // docAbove returns the text of the comment directly above an offset: /** ... */, or
  // lines of //. It ignores directives to linters and compilers.
  docAbove(at) {
    const lines = []
    for (;;) {
      const above = this.text.slice(0, at).trimEnd()
      const gap = this.text.slice(above.length, at)
      const isBlock = above.endsWith('*/')
      at = isBlock ? above.lastIndexOf('/*') : above.lastIndexOf('\n') + 1
      const comment = above.slice(at).trim()
      const before = above.slice(above.lastIndexOf('\n', at - 1) + 1, at)
      if (/\n\s*\n/.test(gap) || (gap.includes('\n') && before.trim() !== '')) break
      if (DIRECTIVE.test(comment)) continue
      if (!comment.startsWith(isBlock ? '/**' : '//')) break
      if (isBlock && lines.length > 0) break
      lines.unshift(clean(comment))
      if (isBlock) break
    }
    return lines.join('\n').trim()
  }

  // firstComment returns the comment at the beginning of the file, unless it documents
  // a function that is no method.
  firstComment() {
    const start = /^(#!.*)?\s*(['"]use strict['"];?)?/.exec(text)[0].length
    const lines = []
    let end = start
    for (const [all, comment] of text.slice(start).matchAll(COMMENTS)) {
      const gap = all.slice(0, -comment.length)
      if (lines.length > 0 && /\n\s*\n/.test(gap)) break
      end += all.length
      if (DIRECTIVE.test(comment)) continue
      lines.push(clean(comment))
      if (comment.startsWith('/*')) break
    }
    const isOfFunction = /^\s?\n(async )?function\b/.test(text.slice(end))
    return isOfFunction ? '' : lines.join('\n').trim()
  }

  // lineComment returns the text of the comment at the end of the line.
  lineComment() {
    LINE_COMMENT.lastIndex = this.pos
    const [, comment] = LINE_COMMENT.exec(this.text) ?? []
    return comment ? clean(comment) : ''
  }

  // ---- Tools and their schemas

  // tool returns the MCP definition of a method. usher takes tags out of the
  // description and applies them.
  tool(name, { doc, params }) {
    const lines = paramLines(doc)
    const { schema, param } = this.input(params, lines)
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
  // pattern of its first parameter, and the name of that parameter. It sets positional if the
  // method takes no object, or more than one parameter.
  input(params, lines) {
    this.positional = false
    if (params === undefined) return { schema: { type: 'object', additionalProperties: true } }
    this.pos = params
    if (this.is('this')) while (!this.is(')', '') && !this.eat(',')) this.skip()
    if (this.is(')')) return { schema: { type: 'object', properties: {} } }

    const root = lines.find(line => line.name)
    let param = this.key()
    let fields
    if (this.is('{')) {
      fields = this.pattern()
      param = root && !(root.name in fields) ? root.name.split('.')[0] : ''
    } else {
      this.skip()
    }
    this.eat('?')
    const typed = this.eat(':')

    this.open = new Set() // types that are being written out
    this.recursive = new Set() // types that contain themselves
    this.defs = Object.create(null)
    let schema = {}
    if (typed) schema = this.type(',', ')', '=')
    while (!this.is(',', ')', '=>', '')) this.skip()
    this.positional = this.eat(',') && !this.is(')', '...')
    if (!typed && root?.type && root.name === param) schema = this.typeIn(root.type)
    schema = { ...this.written(schema) }
    if (schema.type !== 'object') {
      this.positional ||= typeof schema.type === 'string'
      schema = { type: 'object' }
    }
    delete schema.description // the tool has one
    if (fields) addFields(schema, fields, typed, lines)
    if (!fields || this.takesRest) schema.additionalProperties ??= true
    if (Object.keys(this.defs).length > 0) schema.$defs = this.defs
    return { schema, param }
  }

  // pattern returns the names that { a, b: c = 1 } takes out of an object, and whether
  // each has a default. It sets takesRest if the pattern ends with a name for the rest.
  pattern() {
    const fields = Object.create(null)
    this.takesRest = false
    this.eat('{')
    while (!this.eat('}', '')) {
      const key = this.key()
      let fallback = false
      this.takesRest = this.is('...')
      while (!this.is(',', '}', '')) {
        fallback ||= this.is('=')
        this.skip()
      }
      if (key !== undefined) fields[key] = fallback
      this.eat(',')
    }
    return fields
  }

  // ---- Tokens, from this.pos on

  // token returns the next token, which is empty at the end, and its place.
  token() {
    SPACE.lastIndex = this.pos
    SPACE.test(this.text)
    TOKEN.lastIndex = SPACE.lastIndex
    const [token] = TOKEN.exec(this.text)
    return { token, start: SPACE.lastIndex, end: TOKEN.lastIndex }
  }

  is(...tokens) {
    return tokens.includes(this.token().token)
  }

  // eat skips the token if it is one of tokens, and reports whether it was.
  eat(...tokens) {
    const found = this.is(...tokens)
    if (found) this.take()
    return found
  }

  // take returns a token and skips it.
  take() {
    const { token, end } = this.token()
    this.pos = end
    return token
  }

  // skip skips a token, or everything up to the bracket that closes it.
  skip() {
    let depth = 0
    do {
      const token = this.take()
      if (/^[([{]/.test(token)) depth++
      if (/^[)\]}]/.test(token)) depth--
    } while (depth > 0 && !this.is(''))
  }

  // onNewLine reports whether the token is the first on its line.
  onNewLine() {
    SPACE.lastIndex = this.pos
    return SPACE.exec(this.text)[0].includes('\n')
  }

  // key returns the name of a property, undefined if the token is none.
  key() {
    const { token } = this.token()
    if (/^['"]./.test(token)) return token.slice(1, -1).replace(/\\(.)/g, '$1')
    return NAME.test(token) && !token.startsWith('`') ? token : undefined
  }

  // ---- Types. A type that can't be read has the schema {}.

  // type reads a type and skips what it can't read, up to one of the tokens ends.
  type(...ends) {
    let schema = this.union()
    while (!this.is('', ...ends) && !(ends.includes('\n') && this.onNewLine())) {
      schema = {}
      this.skip()
    }
    return schema
  }

  // typeIn reads a type in a comment, which it appends to the text.
  typeIn(text) {
    this.pos = this.text.length
    this.text += '\n' + text
    return this.type()
  }

  // written returns the definition that a schema refers to, or else the schema.
  written(schema) {
    if (!schema.$ref) return schema
    return this.defs[schema.$ref.slice('#/$defs/'.length)] ?? {}
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
    return joined(this.list('|', () => this.intersection()))
  }

  intersection() {
    const parts = this.list('&', () => this.postfix())
    return parts.length === 1 ? parts[0] : merged(parts.map(part => this.written(part)))
  }

  postfix() {
    let schema = this.primary()
    while (this.is('[') && !this.onNewLine()) {
      this.take()
      schema = this.is(']') ? { type: 'array', items: schema } : {}
      this.type(']')
      this.take()
    }
    return schema
  }

  // primary reads a type without operators after it. It leaves a mark that begins no type.
  primary() {
    const { token } = this.token()
    if (token === '{') return this.object()
    if (token === '(') {
      this.take()
      const schema = this.type(')')
      this.take()
      return schema
    }
    if (token === '[') {
      this.skip()
      return { type: 'array' }
    }
    const key = this.key()
    const isNegative = this.eat('-')
    if (/^\.?\d/.test(this.token().token)) {
      const value = Number(this.take())
      return { type: 'number', enum: [isNegative ? -value : value] }
    }
    if (token.startsWith('`')) {
      this.take()
      return { type: 'string' }
    }
    if (key === undefined) return {}
    this.take()
    return key === token ? this.word(key) : { type: 'string', enum: [key] }
  }

  word(text) {
    if (PLAIN_TYPE.test(text)) return { type: text }
    if (/^(true|false)$/.test(text)) return { type: 'boolean', enum: [text === 'true'] }
    if (/^(undefined|void)$/.test(text)) return { [MISSING]: true }
    if (text === 'readonly') return this.postfix()
    let args = []
    if (this.eat('<')) {
      args = this.list(',', () => this.type(',', '>'))
      this.take()
    }
    if (this.types.has(text)) return this.declared(text, this.types.get(text))
    switch (text) {
      case 'Array':
      case 'ReadonlyArray':
        return { type: 'array', items: args[0] }
      case 'Record':
        return { type: 'object', additionalProperties: args[1] }
      case 'Partial':
        return { ...this.written(args[0] ?? {}), required: undefined }
      case 'Readonly':
        return args[0] ?? {}
    }
    return {}
  }

  // declared returns the schema of a type that the file declares. A type that contains
  // itself becomes a definition, which is referred to. Every other type is written out.
  declared(name, { at, doc }) {
    const ref = { $ref: '#/$defs/' + name }
    if (this.open.has(name)) this.recursive.add(name)
    if (this.open.has(name) || this.defs[name]) return ref
    const back = this.pos
    this.pos = at
    this.open.add(name)
    let schema = {} // of a generic type
    if (this.eat('=')) {
      schema = this.type(';', '\n')
    } else if (!this.is('<')) {
      const read = () => this.written(this.postfix())
      const bases = this.eat('extends') ? this.list(',', read) : []
      const known = bases.filter(base => base.properties)
      schema = merged([...known, this.object()])
    }
    this.open.delete(name)
    this.pos = back
    if (doc) schema = { ...schema, description: doc }
    if (!this.recursive.has(name)) return schema
    this.defs[name] = schema
    return ref
  }

  // object reads { a: string; b?: number }.
  object() {
    const properties = Object.create(null)
    const required = []
    let rest // the schema of [key: string]: T
    this.take()
    while (!this.eat('}', '')) {
      if (this.eat(';', ',')) continue
      const { start } = this.token()
      const back = this.pos
      if (this.eat('readonly') && this.is(':', '?', '(')) this.pos = back // its name
      const key = this.key()
      this.skip()
      const isIndex = /^(readonly\s+)?\[\s*\w+\s*:/.test(this.text.slice(start, this.pos))
      const optional = this.eat('?')
      const isMethod = this.is('(', '<')
      this.eat(':')
      const part = this.type(';', ',', '}', '\n')
      if (isIndex) rest = part
      if (key === undefined || isMethod) continue
      const doc = flat(this.docAbove(start) || this.lineComment())
      properties[key] = { ...part, description: doc || part.description }
      if (!optional && !part[MISSING]) required.push(key)
    }
    const schema = objectSchema(properties, required)
    if (rest && Object.keys(properties).length === 0) delete schema.properties
    return { ...schema, additionalProperties: rest }
  }
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
  if (schema.required.length === 0) delete schema.required
}

function objectSchema(properties, required) {
  return { type: 'object', properties, required: required.length > 0 ? required : undefined }
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
  return objectSchema(properties, required)
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

try {
  methods = await load()
} catch (err) {
  log(loadFailure(err))
  process.exit(1)
}
pipes.input.on('data', onData)
pipes.input.on('error', onEnd).on('close', onEnd).on('end', onEnd)
