"""Pure decisions of admission: frozen values in, frozen values out; time is an argument."""
