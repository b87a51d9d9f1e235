export default class {
  /**
   * @param {number} a
   * @param {number} b
   */
  add(a, b) { return a + b }
  static make() {}
}
