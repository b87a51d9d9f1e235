/** Takes it. */
export function handleIt(params) { return params; }

/**
 * Takes it too.
 * @webhook any/path
 */
export function other({ _webhook }) { return { _response: { status: 201, body: _webhook.method } }; }

/** @signature github WH_KEY_SIGNING_SECRET */
export function handleSigned() { return 1; }

/** Fails. */
export function handleFail() { throw new Error("no more"); }
