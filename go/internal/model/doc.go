// Package model explores the protocol exhaustively: every order in which
// several hosts, launchers, keepers and reapers can take their steps around one
// record, with kills, stops, crashes, failing writes and reused pids between any
// two of them.
//
// What is decided is asked of the product: claim.Decide, keep.Next, reap.Next
// and reap.Decide. What is modelled here is the world they decide about, the
// reading of facts and the order in which an answer is performed, which is
// claim.go's, keep.go's, launch.go's, stop.go's and start.go's. See
// docs/model.md for what that leaves out.
package model
