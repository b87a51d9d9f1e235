export default class { add(a, b) {} }
