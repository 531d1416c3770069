(module (memory 1 2 shared) (func (export "colloid_invoke") (drop (i32.atomic.load (i32.const 0)))))
