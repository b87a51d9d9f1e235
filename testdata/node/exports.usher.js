/** The first comment belongs to a function. */
exports.first = function ({ a }) { return a }

/** The second. */
module.exports.second = async ({ b = 1 }) => b
exports['third'] = p => p
