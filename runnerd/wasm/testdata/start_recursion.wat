(module (func $s (call $s)) (start $s))
