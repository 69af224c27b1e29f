// The outcome of a batch: a promise that knows whether the program asks for it. `await`, `then`, `catch` and
// `finally` ask. What fails and is not asked for would be silent; a producer says it when it closes.

export class Outcome extends Promise {
  isAwaited = false;
  static get [Symbol.species]() {
    return Promise; // of what `then` returns
  }
  then(...callbacks) {
    this.isAwaited = true;
    return super.then(...callbacks);
  }
  /** Call back if it fails; that does not ask for it. */
  onFailure = (callback) => void super.then(null, callback);
}
