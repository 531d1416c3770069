;; The start function runs once, before _initialize.
(module
  (global $n (mut i32) (i32.const 1))
  (func $start (global.set $n (i32.add (global.get $n) (i32.const 10))))
  (func (export "_initialize") (global.set $n (i32.mul (global.get $n) (i32.const 3))))
  (func (export "n") (result i32) (global.get $n))
  (start $start))
