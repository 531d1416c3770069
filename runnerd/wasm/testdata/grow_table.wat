(module (table $t 1 funcref) (func (export "grow") (param i32) (result i32)
  (table.grow $t (ref.null func) (local.get 0))))
