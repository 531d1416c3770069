(module (func $s (loop $l (br $l))) (start $s))
