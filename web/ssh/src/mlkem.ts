// ML-KEM-768 (FIPS 203), in a module of its own: it is loaded first when a
// server offers it, and a page that meets none never pays for it.

export { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
