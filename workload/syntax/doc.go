// Package syntax reads the text form that all of Colloid's files for people share: workload files
// and the host policy files of the helpers (F156). It knows words, statements and blocks and nothing
// of what they mean; the packages that own a file kind walk the tree and report their own complaints
// with the positions kept here.
//
// # Form
//
//	name argument argument ...            # a statement ends with its line, or with ;
//	name argument { statement; statement }
//	name "an argument with spaces" \
//	     and-one-more                     # a backslash at the end of a line continues it
//
// Nouns: a Word is one argument, bare or in double quotes; a Statement is a name with arguments and
// perhaps a body; a Position is where either began. In quotes the escapes are \" \\ \$ \n \r \t and
// \u{HEX}. ${NAME} in an argument is replaced by the value of a variable; the value never becomes
// syntax, whatever characters it has. A # starts a comment only where a word could start, so that
// references with a fragment need no quotes.
//
// # Limits
//
// A source has at most SourceSizeMax bytes, blocks nest at most DepthMax deep, there are at most
// StatementsMax statements, and all values of variables put in together take at most ExpandedSizeMax
// bytes. Beyond each there is an error, never a truncated tree. At most ErrorsMax errors are kept.
package syntax
