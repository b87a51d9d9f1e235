/**
 * @module b
 * @description Shifts. Slowly.
 */

/**
 * @param {number} by
 * @param {?string} [_=x]
 */
exports.shift = function (by, _) { return by }
