export const handleDraw = () => Buffer.from('iVBORw0KGgo=', 'base64')
export const text = () => new Uint8Array([104, 105]).buffer
export const blocks = () => [{ type: 'image', data: new Uint8Array([104, 105]), mimeType: 'image/png' }]
export const one = ({ a }) => a
export const rest = ({ a, ...more }) => a
/** @param a */
export const whole = p => p.a
